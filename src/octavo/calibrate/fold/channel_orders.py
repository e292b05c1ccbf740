"""Channels in random order, and clusters of them by k-means."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from octavo.calibrate.fold.find import find_folds
from octavo.calibrate.fold.fold import F64, ChannelFold, FoldPart, reordered
from octavo.calibrate.fold.folded_file import ChangedFile, TensorChanges
from octavo.calibrate.fold.region import Ints
from octavo.errors import UsageError
from octavo.io.gguf import GGUFFile
from octavo.models import read_model

ROUNDS = 300
"""The most rounds of k-means."""


def shuffle(file: GGUFFile, seed: int) -> ChangedFile:
    """The model of `file` with all channels that can change places in a random order: it computes the same.

    What it computes once it is quantized is not the same: several seeds show how much of a difference is chance.
    """
    rng, changes = np.random.default_rng(seed), TensorChanges()
    for fold in find_folds(read_model(file), "orders"):
        changes.add_fold(fold, partial(_reordered, random_order(fold, rng)))
    return ChangedFile(file, changes)


def _reordered(order: Ints, part: FoldPart, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return reordered(part, order, values)


def random_order(fold: ChannelFold, rng: np.random.Generator) -> Ints:
    """An order of a fold's channels, int [size], for `reorder`: each block's at random."""
    order = np.arange(fold.size)
    for block in range(int(fold.blocks.max()) + 1):
        mine = np.flatnonzero(fold.blocks == block)
        order[mine] = rng.permutation(mine)
    return order


def clusters(points: F64, count: int, *, seed: int = 0, starts: int = 10) -> Ints:
    """The cluster of each of `points` [n, d], 0 to count - 1, by k-means from several starts, the best of them.

    The first centres are drawn by their distance from those before (k-means++). Raises UsageError for a count below 1.
    """
    if count < 1:
        raise UsageError(f"{count} clusters (allowed: 1 or more)")
    rng, count = np.random.default_rng(seed), min(count, len(points))
    tries = (_k_means(points, _first_centres(points, count, rng)) for _ in range(starts))
    return min(tries, key=lambda found: found[1])[0]


def _first_centres(points: F64, count: int, rng: np.random.Generator) -> F64:
    centres = [points[rng.integers(len(points))]]
    for _ in range(count - 1):
        squares = _squares(points, np.stack(centres)).min(axis=1)
        total = squares.sum()
        centres.append(points[rng.choice(len(points), p=squares / total if total else None)])
    return np.stack(centres)


def _k_means(points: F64, centres: F64) -> tuple[Ints, float]:
    """The cluster of each point, and the sum of squares around their means."""
    labels = np.full(len(points), -1)
    for _ in range(ROUNDS):
        squares = _squares(points, centres)
        nearest = squares.argmin(axis=1)
        if (nearest == labels).all():
            break
        labels = nearest
        for label in np.unique(labels):
            centres[label] = points[labels == label].mean(axis=0)
    return labels, float(_squares(points, centres)[np.arange(len(points)), labels].sum())


def _squares(points: F64, centres: F64) -> F64:
    out: F64 = np.square(points[:, None] - centres).sum(axis=-1)
    return out
