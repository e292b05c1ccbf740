"""Choosing a type for each tensor so that a model fits a size and loses as little as it can.

Each tensor offers candidates, a type with its bytes and an estimate of what it costs in quality. Losses add up, so
this is the multiple-choice knapsack problem, solved here by dynamic programming over the sizes that can be reached
(Nemhauser and Ullmann 1969): of all ways to choose the first tensors' types those are kept which no other one matches
in both size and loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.errors import UsageError
from octavo.formats.spec import AnyArray

MOST_STATES = 8192
"""Ways that are kept after each tensor. Only where there are more is the result not exact, but next to it."""

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A type that a tensor may have: its name, the bytes it takes, and what it costs (0: nothing is lost)."""

    type_name: str
    nbytes: int
    loss: float


class _Step(NamedTuple):
    """How the ways of one more tensor came about: for each the way before it, and the candidate added."""

    parent: I64
    choice: I64


def solve_knapsack(candidates: Mapping[str, Sequence[Candidate]], nbytes: int) -> dict[str, Candidate]:
    """One candidate for each tensor: together at most `nbytes`, with the least sum of losses.

    Raises UsageError where even the smallest candidates take more, and for a loss that is NaN or below 0.
    """
    _check(candidates)
    least = [min(c.nbytes for c in options) for options in candidates.values()]
    if sum(least) > nbytes:
        raise UsageError(f"a size of {nbytes:,} bytes (allowed: at least {sum(least):,}, the smallest types)")
    sizes, losses = np.zeros(1, np.int64), np.zeros(1)
    steps: list[_Step] = []
    rest = sum(least)
    for options, smallest in zip(candidates.values(), least, strict=True):
        rest -= smallest
        sizes, losses, step = _extend(sizes, losses, options, nbytes - rest)
        steps.append(step)
    return _walk_back(candidates, steps, int(losses.argmin()))


def _extend(sizes: I64, losses: F64, options: Sequence[Candidate], most: int) -> tuple[I64, F64, _Step]:
    """All ways with one more tensor that take at most `most` bytes, smallest first, without those that others beat."""
    total = (sizes[:, None] + np.array([c.nbytes for c in options])).reshape(-1)
    lost = (losses[:, None] + np.array([c.loss for c in options])).reshape(-1)
    fits = np.flatnonzero(total <= most)
    order = fits[np.lexsort((lost[fits], total[fits]))]
    best = np.minimum.accumulate(lost[order])
    kept = order[np.concatenate([[True], best[1:] < best[:-1]])]
    if len(kept) > MOST_STATES:
        kept = kept[_thinned(total[kept])]
    return total[kept], lost[kept], _Step(kept // len(options), kept % len(options))


def _thinned(sizes: I64) -> AnyArray:
    """Which of ways of rising size to keep: of each of MOST_STATES equal ranges of sizes the last one, the best."""
    edges = np.linspace(sizes[0], sizes[-1], MOST_STATES)
    return np.unique(np.searchsorted(sizes, edges, side="right") - 1)


def _walk_back(candidates: Mapping[str, Sequence[Candidate]], steps: list[_Step], at: int) -> dict[str, Candidate]:
    chosen: list[Candidate] = []
    for step, options in zip(reversed(steps), reversed(list(candidates.values())), strict=True):
        chosen.append(options[int(step.choice[at])])
        at = int(step.parent[at])
    return dict(zip(candidates, reversed(chosen), strict=True))


def _check(candidates: Mapping[str, Sequence[Candidate]]) -> None:
    for name, options in candidates.items():
        if not options:
            raise UsageError(f"tensor {name!r} has no type to choose")
        for c in options:
            if not (np.isfinite(c.loss) and c.loss >= 0 and c.nbytes >= 0):
                problem = f"{c.type_name} of tensor {name!r} costs {c.loss} and takes {c.nbytes} bytes"
                raise UsageError(f"{problem} (allowed: finite numbers, 0 or more)")
