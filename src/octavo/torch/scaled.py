"""Scales of a torch model's folds, each chosen by what the products that read it err once they are rounded."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from octavo.calibrate.methods import FoldProducts
from octavo.calibrate.methods.scheme_search import roundings, search_of
from octavo.calibrate.schemes.fold_scales import TOKENS
from octavo.formats.spec import F32
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.statistics import ChannelStatistics
from octavo.torch.folds import OpenFold
from octavo.torch.module_runs import hooked, layers_in_order, outputs_of, rows_of, some_rows

_log = logging.getLogger(__name__)

KEPT = 1 << 30
"""Bytes of vectors that are kept at a time, for searches; more folds take another run of the batches."""


def scale_folds(
    module: nn.Module, folds: Sequence[OpenFold], scheme: CheckpointScheme, scales: str, ways: Sequence[str],
    chosen: Collection[nn.Linear], batches: Sequence[Any],
) -> None:
    """Choose scales of folds one after the other, and apply them to the float layers.

    scales  the way in which they are chosen, by its name
    ways    in which weights are made afterwards
    chosen  layers that will be quantized: others take scales up and have no say. A fold that none of these reads stays

    Raises NonFiniteError naming a layer that is given NaN or Inf.
    """
    search = search_of(scales, scheme, ways)
    readers = [layer for fold in folds for layer in fold.readers.values()]
    calls = layers_in_order(module, readers, batches[0])
    read = [_Read(fold, rounded) for fold in folds if (rounded := _chosen(fold, chosen))]
    for part in _parts(read):
        _run(module, part, calls, batches)
        for each in part:
            found = search(each.pair(scheme))
            each.fold.scale(found.scales)
            how = found.how or scales
            _log.info("%s: %s, error %.4g, before %.4g", each.fold.label, how, found.after, found.before)
            each.some.clear()


def _chosen(fold: OpenFold, chosen: Collection[nn.Linear]) -> dict[str, nn.Linear]:
    """The readers of a fold that will be quantized."""
    return {name: layer for name, layer in fold.readers.items() if layer in chosen}


class _Read:
    """A fold's products: statistics of what they are given, and some of it.

    rounded  the layers, by name: the first tells what all of them are given
    some     vectors [T, K]
    """

    def __init__(self, fold: OpenFold, rounded: dict[str, nn.Linear]) -> None:
        self.fold, self.rounded, self.some = fold, rounded, list[F32]()
        name, self.layer = next(iter(rounded.items()))
        self._met = ChannelStatistics(1, self.layer.in_features, name)

    def add(self, x: Tensor, most: int) -> None:
        """Count what a call is given, and keep some of it, evenly spread."""
        rows = rows_of(x)
        self._met.add(rows, 0)
        self.some.append(some_rows(rows, most).copy())

    def pair(self, scheme: CheckpointScheme) -> FoldProducts:
        weights = tuple(each.weight.detach().float().cpu().numpy() for each in self.rounded.values())
        return FoldProducts(
            weights, np.concatenate(self.some), *roundings(scheme), self.fold.columns, self._met.absmax[0],
            self._met.mean_abs[0], scheme.strategy != "tensor_group",
        )


def _parts(read: Sequence[_Read]) -> Iterator[list[_Read]]:
    """Folds whose vectors are kept at a time: a run of the batches for each part."""
    part, size = list[_Read](), 0
    for each in read:
        nbytes = 4 * TOKENS * each.layer.in_features
        if part and size + nbytes > KEPT:
            yield part
            part, size = [], 0
        part.append(each)
        size += nbytes
    if part:
        yield part


def _run(module: nn.Module, read: Sequence[_Read], calls: Mapping[nn.Linear, int], batches: Sequence[Any]) -> None:
    """Run the batches, and count what the folds' products are given."""
    of = {each.layer: each for each in read}

    def count(layer: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        of[layer].add(given[0].detach(), -(-TOKENS // (len(batches) * calls[layer])))

    with hooked(of, count):
        for batch in batches:
            outputs_of(module, batch)
