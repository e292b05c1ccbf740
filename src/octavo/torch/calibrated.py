"""Weights of a torch model by what its layers are given, one after the other as they are called."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from torch import nn

from octavo.calibrate.hessian import CrossHessian, Hessian
from octavo.calibrate.hessian.damping import Matrix
from octavo.calibrate.hessian.factor import factorize
from octavo.calibrate.methods.gptq import DAMP
from octavo.calibrate.methods.gptq.gptq_schemes import gptq_coded
from octavo.calibrate.runner import ProductInput
from octavo.calibrate.schemes.scheme_weights import GPTQ_WAYS, WeightQuantizer
from octavo.errors import NonFiniteError
from octavo.formats.spec import F32
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.torch.module_runs import inputs_of, rows_of, sharing, vectors_of

_log = logging.getLogger(__name__)

CLIPPED = 4096
"""Vectors that limits of groups are found and judged with, at most."""


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
        if len(self._ways) == 1 and self._ways[0] in GPTQ_WAYS:
            return self._by_gptq(layer, name, calls, values)
        most = CLIPPED if self._ways == ("clip",) else None
        given = vectors_of(self._module, layer, calls, self._batches, most)
        if not np.isfinite(given).all():
            raise NonFiniteError(f"the model computed NaN or Inf in what {name or 'the layer'} is given")
        original = None
        if self._original is not None:
            original = vectors_of(self._original, self._twin(name), calls, self._batches, most), None
        labels = {each: f"{each}.weight" if each else "weight" for each in layers}
        product = ProductInput((*labels.values(),), layer.in_features, 0, given, None, original)
        maker, found = WeightQuantizer(self._scheme, product, None, self._ways, None), dict[str, Coded]()
        for each, label in labels.items():
            made = maker.made(label, values.pop(each))
            errors = _relative(made.after, made.before, made.power)
            _log.info("%s: %s, error %.4g, nearest %.4g", label, made.how, *errors)
            found[each] = made.coded
        return found

    def _by_gptq(self, layer: nn.Linear, name: str, calls: int, values: dict[str, F32]) -> dict[str, Coded]:
        """The weights by sums over what their layers are given."""
        if self._original is None:
            hessian, cross = self._hessian(layer, name, calls), None
        else:
            sums = self._cross(layer, name, calls)
            hessian, cross = sums.hessian.matrix(), sums.cross()
        factor = factorize(hessian, "act", DAMP)
        return {
            each: gptq_coded(self._scheme, weight, hessian, cross=cross, factor=factor)
            for each, weight in values.items()
        }

    def _hessian(self, layer: nn.Linear, name: str, calls: int) -> Matrix:
        sums = Hessian(layer.in_features, name)
        for batch in self._batches:
            for x in inputs_of(self._module, layer, calls, batch):
                sums.add(rows_of(x))
        return sums.matrix()

    def _cross(self, layer: nn.Linear, name: str, calls: int) -> CrossHessian:
        assert self._original is not None
        sums = CrossHessian(layer.in_features, name)
        for batch in self._batches:
            now = inputs_of(self._module, layer, calls, batch)
            then = inputs_of(self._original, self._twin(name), calls, batch)
            for x, y in zip(now, then, strict=True):
                sums.add(rows_of(x), rows_of(y))
        return sums

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
