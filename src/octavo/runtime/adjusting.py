"""Changes to logits before a token is chosen: penalties, biases, tokens that are left out.

A change is two numbers, as op `adjust` takes them: so it is made where the logits are, or on the host, with one result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.formats.spec import F32

NEVER = 100.0  # -NEVER as the bias of a token: it is not chosen

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Changes:
    """For each of `ids`, none of which is there twice: its logit is divided by `scale` if it is over 0, else multiplied
    with it, and `add` is added. All of one length; `scale` and `add` are float32."""

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


@dataclass(frozen=True)
class Adjuster:
    """A filter of logits that changes some of them by what the tokens so far are."""

    changes: Callable[[Sequence[int]], Changes]

    def __call__(self, logits: F32, tokens: Sequence[int]) -> F32:
        return self.changes(tokens)(logits)


def _added(ids: Ids, add: F32) -> Changes:
    return Changes(ids, np.ones(len(ids), np.float32), add)


NO_CHANGES = _added(np.empty(0, np.int64), np.empty(0, np.float32))


def all_changes(adjusters: Sequence[Adjuster], tokens: Sequence[int]) -> Changes:
    """What several adjusters change together: the scales of a token are multiplied, what is added to it is summed."""
    parts = [c for c in (adjuster.changes(tokens) for adjuster in adjusters) if len(c.ids)]
    if len(parts) < 2:
        return parts[0] if parts else NO_CHANGES
    ids, places = np.unique(np.concatenate([c.ids for c in parts]), return_inverse=True)
    scale, add = np.ones(len(ids), np.float32), np.zeros(len(ids), np.float32)
    np.multiply.at(scale, places, np.concatenate([c.scale for c in parts]))
    np.add.at(add, places, np.concatenate([c.add for c in parts]))
    return Changes(ids, scale, add)


def repeat_penalty(penalty: float, last_n: int) -> Adjuster:
    """Make tokens that came before less likely (CTRL, arXiv 1909.05858)."""

    def changes(tokens: Sequence[int]) -> Changes:
        recent = np.array(sorted(set(tokens[-last_n:])) if last_n else [], np.int64)
        return Changes(recent, np.full(len(recent), penalty, np.float32), np.zeros(len(recent), np.float32))

    return Adjuster(changes)


def reply_penalties(presence: float, frequency: float, n_prompt: int) -> Adjuster:
    """Take from the logits of tokens that came after the first `n_prompt` ones."""

    def changes(tokens: Sequence[int]) -> Changes:
        seen, counts = np.unique(np.asarray(tokens[n_prompt:], np.int64), return_counts=True)
        return _added(seen, -(presence + frequency * counts).astype(np.float32))

    return Adjuster(changes)


def biased(biases: Mapping[int, float]) -> Adjuster:
    """Add to the logits of some tokens; -NEVER leaves one out."""
    values = [-math.inf if value == -NEVER else value for value in biases.values()]
    made = _added(np.fromiter(biases, np.int64, len(biases)), np.array(values, np.float32))
    return Adjuster(lambda tokens: made)


def without(ids: Collection[int], length: float) -> Adjuster:
    """Leave tokens out, until there are `length` of all."""
    made = _added(np.array(sorted(ids), np.int64), np.full(len(ids), -math.inf, np.float32))
    return Adjuster(lambda tokens: made if len(tokens) < length else NO_CHANGES)
