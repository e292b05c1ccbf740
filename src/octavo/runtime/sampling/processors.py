"""Changes to logits before a token is chosen: penalties, biases, tokens that are left out.

A change is two numbers, as op `adjust` takes them: so it is made where the logits are, or on the host, with one result.
Those of all replies of a step are found together (`changes_of`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from octavo.formats.spec import F32
from octavo.runtime.sampling.token_counts import Counts, Ids, counted

NEVER = 100.0  # -NEVER as the bias of a token: it is not chosen
ROW_BITS = 32
"""A number of a reply, shifted by so many bits, and a token are one integer to sort by."""

Texts = Sequence[Sequence[int]]
"""The tokens so far of some replies."""


class Changes(NamedTuple):
    """Changes to the logits of `ids`, none of which is there twice.

    A logit over 0 is divided by its `scale`, any other is multiplied with it; then its `add` is added. All have one
    length; `scale` and `add` are float32.
    """

    ids: Ids
    scale: F32
    add: F32

    def __call__(self, logits: F32) -> F32:
        """Changed logits [n_vocab]; those of ids beyond them are not there."""
        inside = self.ids < len(logits)
        if not inside.any():
            return logits
        ids, scale, logits = self.ids[inside], self.scale[inside], logits.copy()
        values = logits[ids]
        logits[ids] = np.where(values > 0, values / scale, values * scale) + self.add[inside]
        return logits


def _added(ids: Ids, add: F32) -> Changes:
    return Changes(ids, np.ones(len(ids), np.float32), add)


NO_CHANGES = _added(np.empty(0, np.int64), np.empty(0, np.float32))


class Adjuster(ABC):
    """A filter of logits that changes some of them by what the tokens so far are."""

    left_out: frozenset[int] | None = None
    """The tokens that it may leave out, where that is all that it does."""

    @classmethod
    @abstractmethod
    def of_all(cls, adjusters: Sequence[Adjuster], texts: Texts) -> Changes:
        """What adjusters of this class change for replies, one each: of all in their order, ids as `_keys` has them."""

    def __call__(self, logits: F32, tokens: Sequence[int]) -> F32:
        return changes_of([(self,)], [tokens])[0](logits)


def changes_of(chains: Sequence[Sequence[Adjuster]], texts: Texts) -> list[Changes]:
    """What each reply's adjusters change together: the scales of a token are multiplied, what is added is summed."""
    parts = list(_parts(chains, texts))
    if not parts:
        return [NO_CHANGES] * len(chains)
    keys, scale, add = parts[0] if len(parts) == 1 else _merged(parts)
    if len(chains) == 1:
        return [Changes(keys, scale, add)]
    bounds = np.searchsorted(keys >> ROW_BITS, np.arange(len(chains) + 1)).tolist()
    ids = keys & ((1 << ROW_BITS) - 1)
    return [Changes(ids[a:b], scale[a:b], add[a:b]) for a, b in pairwise(bounds)]


def _parts(chains: Sequence[Sequence[Adjuster]], texts: Texts) -> Iterator[Changes]:
    """What the first adjusters of replies change, what the second ones do, and so on; those of a class in one."""
    for place in range(max(map(len, chains), default=0)):
        rows: dict[type[Adjuster], list[int]] = {}
        for row, adjusters in enumerate(chains):
            if place < len(adjusters):
                rows.setdefault(type(adjusters[place]), []).append(row)
        for kind, those in rows.items():
            found = kind.of_all([chains[row][place] for row in those], [texts[row] for row in those])
            if len(those) == len(chains):
                yield found
            elif len(found.ids):
                local, token = found.ids >> ROW_BITS, found.ids & ((1 << ROW_BITS) - 1)
                yield found._replace(ids=np.array(those)[local] << ROW_BITS | token)


def _merged(parts: Sequence[Changes]) -> Changes:
    keys, places = np.unique(np.concatenate([p.ids for p in parts]), return_inverse=True)
    scale, add = np.ones(len(keys), np.float32), np.zeros(len(keys), np.float32)
    np.multiply.at(scale, places, np.concatenate([p.scale for p in parts]))
    np.add.at(add, places, np.concatenate([p.add for p in parts]))
    return Changes(keys, scale, add)


def _keys(found: Sequence[Counts]) -> Counts:
    """The tokens of some replies, each with the number of its reply (see `ROW_BITS`), and how often each comes."""
    ids = [row << ROW_BITS | counts.ids for row, counts in enumerate(found)]
    return Counts(np.concatenate(ids), np.concatenate([counts.counts for counts in found]))


@dataclass(frozen=True)
class RepeatPenalty(Adjuster):
    """Makes the `last_n` tokens less likely (CTRL, arXiv 1909.05858)."""

    penalty: float
    last_n: int

    @classmethod
    def of_all(cls, adjusters: Sequence[RepeatPenalty], texts: Texts) -> Changes:  # type: ignore[override]
        parts = zip(adjusters, texts, strict=True)
        keys, _ = _keys([counted(t, max(len(t) - a.last_n, 0), a) for a, t in parts])
        penalties = np.array([a.penalty for a in adjusters], np.float32)
        return Changes(keys, penalties[keys >> ROW_BITS], np.zeros(len(keys), np.float32))


@dataclass(frozen=True)
class ReplyPenalties(Adjuster):
    """Takes from the logits of tokens that came after the first `n_prompt` ones."""

    presence: float
    frequency: float
    n_prompt: int

    @classmethod
    def of_all(cls, adjusters: Sequence[ReplyPenalties], texts: Texts) -> Changes:  # type: ignore[override]
        keys, counts = _keys([counted(t, a.n_prompt, a) for a, t in zip(adjusters, texts, strict=True)])
        each = np.array([(a.presence, a.frequency) for a in adjusters])[keys >> ROW_BITS]
        return _added(keys, -(each[:, 0] + each[:, 1] * counts).astype(np.float32))


@dataclass(frozen=True)
class Biases(Adjuster):
    """Adds to the logits of some tokens; -NEVER leaves one out. From a text of `length` tokens on it does nothing."""

    values: Mapping[int, float]
    length: float = math.inf

    @cached_property
    def left_out(self) -> frozenset[int] | None:  # type: ignore[override]
        return frozenset(self.values) if all(value == -NEVER for value in self.values.values()) else None

    @cached_property
    def changes(self) -> Changes:
        """What it does, for any text."""
        values = [-math.inf if value == -NEVER else value for value in self.values.values()]
        return _added(np.fromiter(self.values, np.int64, len(values)), np.array(values, np.float32))

    @classmethod
    def of_all(cls, adjusters: Sequence[Biases], texts: Texts) -> Changes:  # type: ignore[override]
        made = [(i, a.changes) for i, (a, t) in enumerate(zip(adjusters, texts, strict=True)) if len(t) < a.length]
        if not made:
            return NO_CHANGES
        ids = [i << ROW_BITS | changes.ids for i, changes in made]
        return _added(np.concatenate(ids), np.concatenate([changes.add for _, changes in made]))


def without(ids: Collection[int], length: float) -> Biases:
    """Leave tokens out until a text has `length` tokens."""
    return Biases(dict.fromkeys(sorted(ids), -NEVER), length)
