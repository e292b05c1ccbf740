"""Channels in random order, and clusters of them by k-means."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from octavo.calibrate.fold.find import find_folds
from octavo.calibrate.fold.fold import ChangedFile, ChannelFold, FoldPart, TensorChanges, reordered
from octavo.calibrate.fold.region import Ints
from octavo.io.gguf import GGUFFile
from octavo.models import read_model


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
