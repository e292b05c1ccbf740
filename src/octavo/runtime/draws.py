"""Draws of tokens from candidates, for many replies at once.

A draw depends on a reply's seed and the number of tokens before it alone, so it is the same whatever else runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.formats.spec import F32, AnyArray

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


@dataclass(frozen=True)
class Draw:
    """How a token is drawn: among the `k` largest logits, see `SamplingParams` for the rest."""

    k: int
    top_p: float
    min_p: float
    temperature: float
    seed: int


def draw(values: F32, draws: Sequence[Draw], positions: Sequence[int]) -> list[int]:
    """The column that each row takes of logits [n, K], which are largest first, and -inf after the last one."""
    settings = np.array([(d.k, d.top_p, d.min_p, max(d.temperature, 1e-30)) for d in draws], np.float64)
    k, top_p, min_p, temperature = settings.T[:, :, None]  # [n, 1] each
    below = values.astype(np.float64) - values[:, :1]
    shares = np.where(np.arange(values.shape[1]) < k, np.exp(below), 0.0)
    sums = np.cumsum(shares, axis=1)  # from left to right, so columns that are added change nothing
    kept = (shares > 0) & (sums - shares < top_p * sums[:, -1:]) & (shares >= min_p)
    sums = np.cumsum(np.where(kept, np.exp(below / temperature), 0.0), axis=1)
    drawn = _uniform([d.seed for d in draws], positions)[:, None] * sums[:, -1:]
    last = values.shape[1] - 1 - np.argmax(kept[:, ::-1], axis=1)
    columns: list[int] = np.minimum((sums <= drawn).sum(axis=1), last).tolist()
    return columns


def _uniform(seeds: Sequence[int], positions: Sequence[int]) -> AnyArray:
    if len(seeds) == 1:  # arrays of one number take longer
        return np.array([uniform(seeds[0], positions[0])])
    made: AnyArray = uniform(np.array(seeds, np.uint64), np.array(positions, np.uint64))
    return made
