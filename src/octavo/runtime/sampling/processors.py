"""Adjustments to logits before a token is chosen: penalties, biases, tokens that are left out.

A change is two numbers, as op `adjust` takes them: so it is made where the logits are, or on the host, with one result.
Those of all replies of a step are found together (`adjustments_of`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from octavo.formats.spec import F32, AnyArray
from octavo.runtime.sampling.token_counts import Counts, Ids, counted

NEVER = 100.0  # -NEVER as the bias of a token suppresses it
ROW_BITS = 32
"""The number of a reply, shifted by this many bits, and a token are one integer to sort by."""

Texts = Sequence[Sequence[int]]
"""The tokens so far of some replies."""


class Adjustments(NamedTuple):
    """Adjustments of the logits of `ids`, which are unique.

    A logit over 0 is divided by its `scale`, any other is multiplied with it; then its `add` is added. All have one
    length; `scale` and `add` are float32.
    """

    ids: Ids
    scale: F32
    add: F32

    def __call__(self, logits: F32) -> F32:
        """Adjusted logits [n_vocab]; ids beyond them are ignored."""
        inside = self.ids < len(logits)
        if not inside.any():
            return logits
        ids, scale, logits = self.ids[inside], self.scale[inside], logits.copy()
        values = logits[ids]
        logits[ids] = np.where(values > 0, values / scale, values * scale) + self.add[inside]
        return logits


def added(ids: Ids, add: F32) -> Adjustments:
    """What is added to the logits of tokens, each of which comes once."""
    return Adjustments(ids, np.ones(len(ids), np.float32), add)


NO_ADJUSTMENTS = added(np.empty(0, np.int64), np.empty(0, np.float32))


class LogitsProcessor(ABC):
    """Adjusts some logits by the tokens so far."""

    suppressed: frozenset[int] | None = None
    """The tokens that it may suppress, where that is all that it does."""

    @classmethod
    @abstractmethod
    def of_all(cls, processors: Sequence[LogitsProcessor], texts: Texts) -> Adjustments:
        """Adjustments by processors of this class, one for each reply, in their order; ids as of `_keys`."""

    def __call__(self, logits: F32, tokens: Sequence[int]) -> F32:
        return adjustments_of([(self,)], [tokens])[0](logits)


def adjustments_of(chains: Sequence[Sequence[LogitsProcessor]], texts: Texts) -> list[Adjustments]:
    """Each reply's adjustments together: the scales of a token are multiplied, what is added is summed."""
    parts = list(_parts(chains, texts))
    if not parts:
        return [NO_ADJUSTMENTS] * len(chains)
    keys, scale, add = parts[0] if len(parts) == 1 else _merged(parts)
    if len(chains) == 1:
        return [Adjustments(keys, scale, add)]
    bounds = np.searchsorted(keys >> ROW_BITS, np.arange(len(chains) + 1)).tolist()
    ids = keys & ((1 << ROW_BITS) - 1)
    return [Adjustments(ids[a:b], scale[a:b], add[a:b]) for a, b in pairwise(bounds)]


def _parts(chains: Sequence[Sequence[LogitsProcessor]], texts: Texts) -> Iterator[Adjustments]:
    """Adjustments by the first processors of replies, by the second ones, and so on; those of a class together."""
    for place in range(max(map(len, chains), default=0)):
        rows: dict[type[LogitsProcessor], list[int]] = {}
        for row, processors in enumerate(chains):
            if place < len(processors):
                rows.setdefault(type(processors[place]), []).append(row)
        for kind, those in rows.items():
            found = kind.of_all([chains[row][place] for row in those], [texts[row] for row in those])
            if len(those) == len(chains):
                yield found
            elif len(found.ids):
                local, token = found.ids >> ROW_BITS, found.ids & ((1 << ROW_BITS) - 1)
                yield found._replace(ids=np.array(those)[local] << ROW_BITS | token)


def _merged(parts: Sequence[Adjustments]) -> Adjustments:
    keys, places = np.unique(np.concatenate([p.ids for p in parts]), return_inverse=True)
    scale, add = np.ones(len(keys), np.float32), np.zeros(len(keys), np.float32)
    np.multiply.at(scale, places, np.concatenate([p.scale for p in parts]))
    np.add.at(add, places, np.concatenate([p.add for p in parts]))
    return Adjustments(keys, scale, add)


def _keys(found: Sequence[Counts]) -> Counts:
    """The tokens of some replies, each with the number of its reply (see `ROW_BITS`), and how often each comes."""
    ids = [row << ROW_BITS | counts.ids for row, counts in enumerate(found)]
    return Counts(np.concatenate(ids), np.concatenate([counts.counts for counts in found]))


@dataclass(frozen=True)
class RepeatPenalty(LogitsProcessor):
    """Makes the `last_n` tokens less likely (CTRL, arXiv 1909.05858)."""

    penalty: float
    last_n: int

    @classmethod
    def of_all(cls, processors: Sequence[RepeatPenalty], texts: Texts) -> Adjustments:  # type: ignore[override]
        parts = zip(processors, texts, strict=True)
        keys, _ = _keys([counted(t, max(len(t) - a.last_n, 0), a) for a, t in parts])
        penalties = np.array([a.penalty for a in processors], np.float32)
        return Adjustments(keys, penalties[keys >> ROW_BITS], np.zeros(len(keys), np.float32))


@dataclass(frozen=True)
class ReplyPenalties(LogitsProcessor):
    """Takes from the logits of tokens that came after the first `n_prompt` ones."""

    presence: float
    frequency: float
    n_prompt: int

    @classmethod
    def of_all(cls, processors: Sequence[ReplyPenalties], texts: Texts) -> Adjustments:  # type: ignore[override]
        keys, counts = _keys([counted(t, a.n_prompt, a) for a, t in zip(processors, texts, strict=True)])
        each = np.array([(a.presence, a.frequency) for a in processors])[keys >> ROW_BITS]
        return added(keys, -(each[:, 0] + each[:, 1] * counts).astype(np.float32))


@dataclass(frozen=True)
class LogitBias(LogitsProcessor):
    """Adds to the logits of some tokens; -NEVER suppresses one. From a text of `length` tokens on it does nothing."""

    values: Mapping[int, float]
    length: float = math.inf

    @cached_property
    def suppressed(self) -> frozenset[int] | None:  # type: ignore[override]
        return frozenset(self.values) if all(value == -NEVER for value in self.values.values()) else None

    @cached_property
    def adjustments(self) -> Adjustments:
        """What it does, for any text."""
        values = [-math.inf if value == -NEVER else value for value in self.values.values()]
        return added(np.fromiter(self.values, np.int64, len(values)), np.array(values, np.float32))

    @classmethod
    def of_all(cls, processors: Sequence[LogitBias], texts: Texts) -> Adjustments:  # type: ignore[override]
        made = [(i, a.adjustments) for i, (a, t) in enumerate(zip(processors, texts, strict=True)) if len(t) < a.length]
        if not made:
            return NO_ADJUSTMENTS
        ids = [i << ROW_BITS | one.ids for i, one in made]
        return added(np.concatenate(ids), np.concatenate([one.add for _, one in made]))


def suppress(ids: Collection[int], length: float) -> LogitBias:
    """Suppress tokens until a text has `length` tokens."""
    return LogitBias(dict.fromkeys(sorted(ids), -NEVER), length)


MAX_PER_REPLY = 1024
"""Adjustments for each reply, on average, that a step takes."""
MIN_ADJUSTED, GROWTH = 64, 4


def max_adjusted(replies: int) -> int:
    """The most adjustments of a step."""
    return _adjusted_bucket(MAX_PER_REPLY * replies)


def _adjusted_bucket(n: int) -> int:
    """The next number of adjustments that steps are bound for, from n on: 64, 256, 1024 and so on."""
    size = MIN_ADJUSTED
    while size < n:
        size *= GROWTH
    return size


def mask_bucket(n: int) -> int:
    """The next number of masks that steps are bound for, from n on: a power of two."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass
class DeviceAdjustments:
    """Adjustments and masks of a step, with the row of logits that each is for: inputs of ops `adjust` and `mask`.

    adjusted  logits that are adjusted
    """

    words: int
    rows: list[int] = field(default_factory=list)
    adjustments: list[Adjustments] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)
    masks: list[AnyArray] = field(default_factory=list)
    adjusted: int = 0

    def add(self, row: int, adjustments: Adjustments, mask: AnyArray | None) -> None:
        """Adjust a row of logits, and allow only tokens whose bit is set in `mask`, int32 [words]."""
        if n := len(adjustments.ids):
            self.rows.append(row)
            self.adjustments.append(adjustments)
            self.adjusted += n
        if mask is not None:
            self.masked.append(row)
            self.masks.append(mask)

    def __bool__(self) -> bool:
        return bool(self.rows or self.masked)

    def sizes(self) -> dict[str, int]:
        return {"adjusted": _adjusted_bucket(self.adjusted), "masked": mask_bucket(len(self.masked))}

    def inputs(self) -> dict[str, AnyArray]:
        """Arrays of these sizes; rows of -1 pad them."""
        sizes, n = self.sizes(), self.adjusted
        places = np.full((sizes["adjusted"], 2), -1, np.int32)
        changes = np.ones((sizes["adjusted"], 2), np.float32)
        if n:
            places[:n, 0] = np.repeat(self.rows, [len(a.ids) for a in self.adjustments])
            places[:n, 1] = np.concatenate([a.ids for a in self.adjustments])
            changes[:n, 0] = np.concatenate([a.scale for a in self.adjustments])
            changes[:n, 1] = np.concatenate([a.add for a in self.adjustments])
        masked = np.full(sizes["masked"], -1, np.int32)
        masks = np.zeros((sizes["masked"], self.words), np.int32)
        masked[: len(self.masked)] = self.masked
        for row, mask in zip(masks, self.masks, strict=False):
            row[...] = mask
        return {"places": places, "changes": changes, "masked": masked, "masks": masks}
