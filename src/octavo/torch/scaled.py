"""Scales of a torch model's folds, each chosen by what the products that read it err once they are rounded."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from torch import nn

from octavo.evals.smoothing import TOKENS
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.calibration import ChannelStatistics
from octavo.quantizers.smoothing import Pair
from octavo.quantizers.smoothing.schemes import roundings, search_of
from octavo.torch.folds import OpenFold
from octavo.torch.run import inputs_of, layers_in_order, rows_of, some_rows

_log = logging.getLogger(__name__)


def scale_folds(
    module: nn.Module, folds: Sequence[OpenFold], scheme: CheckpointScheme, scales: str, ways: Sequence[str],
    chosen: Collection[nn.Linear], batches: Sequence[Any],
) -> None:  # fmt: skip
    """Choose scales of folds one after the other, and apply them to the float layers.

    scales  the way in which they are chosen, by its name
    ways    in which weights are made afterwards
    chosen  layers that will be quantized: others take scales up and have no say. A fold that none of these reads stays

    Raises NonFiniteError naming a layer that is given NaN or Inf.
    """
    search = search_of(scales, scheme, ways)
    readers = [layer for fold in folds for layer in fold.readers.values()]
    calls = layers_in_order(module, readers, batches[0]) if readers else {}
    for fold in folds:
        rounded = {name: layer for name, layer in fold.readers.items() if layer in chosen}
        if rounded:
            found = search(_pair(module, fold, rounded, scheme, calls, batches))
            fold.scale(found.scales)
            how = found.how or scales
            _log.info("%s: %s, error %.4g, before %.4g", fold.label, how, found.after, found.before)


def _pair(
    module: nn.Module, fold: OpenFold, rounded: dict[str, nn.Linear], scheme: CheckpointScheme,
    calls: dict[nn.Linear, int], batches: Sequence[Any],
) -> Pair:  # fmt: skip
    """A fold's products, with some of what they are given and the statistics of all of it."""
    name, layer = next(iter(rounded.items()))
    met, some = ChannelStatistics(1, layer.in_features, name), []
    for batch in batches:
        rows = np.concatenate([rows_of(x) for x in inputs_of(module, layer, calls[layer], batch)])
        met.add(rows, 0)
        some.append(some_rows(rows, -(-TOKENS // len(batches))))
    weights = tuple(each.weight.detach().float().cpu().numpy() for each in rounded.values())
    return Pair(
        weights, np.concatenate(some), *roundings(scheme), fold.columns, met.absmax[0], met.mean_abs[0],
        scheme.strategy != "tensor_group",
    )  # fmt: skip
