"""Scales and weights of a torch model by what its layers are given, one after the other as they are called."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from octavo.calibrate.methods.channel_scales import FoldProducts, roundings, search_of
from octavo.calibrate.runner import ProductInput
from octavo.calibrate.schemes.fold_scales import TOKENS
from octavo.calibrate.schemes.scheme_weights import GPTQ_WAYS, WeightQuantizer
from octavo.errors import NonFiniteError
from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.statistics import ChannelStatistics
from octavo.torch.folds import (
    OpenFold,
    hooked,
    inputs_of,
    layers_in_order,
    outputs_of,
    rows_of,
    sharing,
    some_rows,
    vectors_of,
)

_log = logging.getLogger(__name__)

KEPT = 1 << 30
"""Bytes of vectors that are kept at a time, for searches; more folds take another run of the batches."""
CLIPPED = 4096
"""Vectors that limits of groups are found and judged with, at most."""


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


@dataclass(frozen=True, eq=False)
class StreamedInput(ProductInput):
    """What a layer is given, run for whenever it is asked for: no vectors are kept.

    runs   the module and its layer, and those of the original model, where that is run too
    calls  how often a batch goes through the layer
    """

    runs: Sequence[tuple[nn.Module, nn.Linear]] = ()
    calls: int = 0
    of: Sequence[Any] = ()

    def batches(self, expert: int | None = None) -> Iterator[F32]:
        return (each[0] for each in self.pairs())

    def pairs(self, expert: int | None = None) -> Iterator[Any]:
        for batch in self.of:
            given = (map(rows_of, inputs_of(*run, self.calls, batch)) for run in self.runs)
            yield from zip(*given, strict=True)


class Calibrator:
    """Makes weights of layers that are quantized one after the other.

    module   the model, in which layers before are quantized already
    ways     of `octavo.calibrate.schemes.scheme_method.KINDS`; of several, the one with the least error over held-out
             vectors is taken
    batches  each a tensor, or a tuple or dict of arguments of the module
    chosen   the layers by name, in the order in which they are called
    calls    how often a batch goes through each

    "qronos" also corrects for what layers before err: a copy of the model runs beside it. With one of "gptq" and
    "qronos" sums over vectors are kept, with several ways all vectors of a layer, 4 K bytes each. Layers that are given
    the same are made together, and their weights kept until they are asked for.
    """

    def __init__(
        self, module: nn.Module, scheme: CheckpointScheme, ways: Sequence[str], batches: Sequence[Any],
        chosen: Mapping[str, nn.Linear], calls: Mapping[nn.Linear, int],
    ) -> None:
        self._module, self._scheme, self._ways, self._batches = module, scheme, ways, batches
        self._original = deepcopy(module) if "qronos" in ways else None
        self._made: dict[str, Coded] = {}
        self._calls = {name: calls[layer] for name, layer in chosen.items()}
        first, together = sharing(module, calls, batches[0]), dict[nn.Linear, dict[str, nn.Linear]]()
        for name, layer in chosen.items():
            group = together.setdefault(first[layer], {})
            if layer not in group.values():
                group[name] = layer
        self._groups = list(together.values())

    def weight(self, name: str) -> Coded:
        """The weight of a layer in the scheme, by the first of its names in `chosen`.

        Raises NonFiniteError where the layer is given NaN or Inf.
        """
        if name not in self._made:
            group = next(group for group in self._groups if name in group)
            self._made.update(self._weights(group, self._calls[name]))
            group.clear()  # so that the layers end when they are replaced
        return self._made.pop(name)

    def _weights(self, layers: Mapping[str, nn.Linear], calls: int) -> dict[str, Coded]:
        """The weights of layers that are given the same."""
        values = {name: _values(layer) for name, layer in layers.items()}
        name, layer = next(iter(layers.items()))
        labels = {each: f"{each}.weight" if each else "weight" for each in layers}
        names = (*labels.values(),)
        runs = [(self._module, layer), *([] if self._original is None else [(self._original, self._twin(name))])]
        if len(self._ways) == 1 and self._ways[0] in GPTQ_WAYS:
            nothing = np.empty((0, layer.in_features), np.float32)
            original = None if self._original is None else (nothing, None)
            streamed = StreamedInput((name,), layer.in_features, 0, nothing, None, original, None, runs, calls,
                                     self._batches)
            maker = WeightQuantizer(self._scheme, streamed, None, self._ways, None)
            return {each: maker.by(self._ways[0], label, values.pop(each)) for each, label in labels.items()}
        most = CLIPPED if self._ways == ("clip",) else None
        given, *others = (vectors_of(*run, calls, self._batches, most) for run in runs)
        if not np.isfinite(given).all():
            raise NonFiniteError(f"the model computed NaN or Inf in what {name or 'the layer'} is given")
        product = ProductInput(names, layer.in_features, 0, given, None, (others[0], None) if others else None)
        maker, found = WeightQuantizer(self._scheme, product, None, self._ways, None), dict[str, Coded]()
        for each, label in labels.items():
            made = maker.made(label, values.pop(each))
            errors = _relative(made.after, made.before, made.power)
            _log.info("%s: %s, error %.4g, nearest %.4g", label, made.how, *errors)
            found[each] = made.coded
        return found

    def _twin(self, name: str) -> nn.Linear:
        """The layer of the original model."""
        assert self._original is not None
        twin = self._original.get_submodule(name)
        assert isinstance(twin, nn.Linear)
        return twin


def _values(layer: nn.Linear) -> F32:
    values: F32 = layer.weight.detach().float().cpu().numpy()
    return values


def _relative(after: float, before: float, power: float) -> tuple[float, float]:
    """Roots of sums of squares over those of the outputs."""
    power = power or 1.0
    return (after / power) ** 0.5, (before / power) ** 0.5
