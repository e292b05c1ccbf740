"""Draws of tokens from candidates, for many replies at once.

A draw depends on a reply's seed and the number of tokens before it alone, so it is the same whatever else runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from octavo.backends.reference.ops import drawn_columns
from octavo.formats.spec import F32, AnyArray

F64 = np.ndarray[tuple[int], np.dtype[np.float64]]
WORD = 0xFFFFFFFF
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def philox(key: tuple[Any, Any], counter: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011): four words of 32 bits.

    Words are Python's integers, or uint64 arrays of one shape.
    """
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & WORD, (first >> 32) ^ c3 ^ k1, first & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: Any, position: Any) -> Any:
    """A number from 0 up to 1, of 53 bits, for a seed of 64 bits and a position; or an array of them for two uint64."""
    first, second, _, _ = philox((seed & WORD, seed >> 32), (position & WORD, position >> 32, seed * 0, seed * 0))
    return ((first >> 5) * (1 << 26) + (second >> 6)) / (1 << 53)


def chance(seed: int, position: int) -> float:
    """Another number for a seed and a position, which says nothing of the first."""
    _, _, first, second = philox((seed & WORD, seed >> 32), (position & WORD, position >> 32, 0, 0))
    return float(((first >> 5) * (1 << 26) + (second >> 6)) / (1 << 53))


@dataclass(frozen=True)
class DrawParams:
    """How a token is drawn: from the `k` largest logits; see `SamplingParams` for the rest."""

    k: int
    top_p: float
    min_p: float
    temperature: float
    seed: int

    @cached_property
    def numbers(self) -> F64:
        """float64 [5]: the first numbers that op `draw` takes, the random one being 0."""
        return np.array([self.k, self.top_p, self.min_p, max(self.temperature, 1e-30), 0.0])


GREEDY = DrawParams(1, 1.0, 0.0, 1.0, 0)
"""The argmax."""


def draw(values: F32, draws: Sequence[DrawParams], positions: Sequence[int]) -> list[int]:
    """The column that each row takes of logits [n, K], which are largest first, and -inf after the last one."""
    columns: list[int] = drawn_columns(values, _numbers(draws, positions)).tolist()
    return columns


@dataclass(frozen=True)
class DeviceDraws:
    """What a step needs to draw tokens on the device: the draw of each of its rows.

    positions  numbers of tokens before those that are drawn
    n_known    tokens that are known
    """

    draws: Sequence[DrawParams]
    positions: Sequence[int]
    n_known: int

    def inputs(self) -> dict[str, AnyArray]:
        """The settings of op `draw`."""
        known = np.full((len(self.draws), 1), self.n_known, np.float64)
        return {"draws": np.concatenate([_numbers(self.draws, self.positions), known], axis=1).view(np.int32)}

    def sizes(self) -> dict[str, int]:
        return {}


def _numbers(draws: Sequence[DrawParams], positions: Sequence[int]) -> AnyArray:
    """float64 [n, 5]: the first numbers that op `draw` takes."""
    numbers = np.concatenate([d.numbers for d in draws]).reshape(len(draws), -1)
    numbers[:, 4] = _uniform([d.seed for d in draws], positions)
    return numbers


def _uniform(seeds: Sequence[int], positions: Sequence[int]) -> AnyArray:
    if len(seeds) == 1:  # arrays of one number take longer
        return np.array([uniform(seeds[0], positions[0])])
    made: AnyArray = uniform(np.array(seeds, np.uint64), np.array(positions, np.uint64))
    return made
