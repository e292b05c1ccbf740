"""Weights of a torch model by what its layers are given, layer after layer as they are called."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from torch import Tensor, nn

from octavo.errors import NonFiniteError
from octavo.evals.layerwise import ProductInput
from octavo.evals.scheme_weights import COMPENSATE, Maker
from octavo.formats.spec import F32
from octavo.huggingface.coded import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.quantizers.calibration import CrossHessian
from octavo.quantizers.compensation.coded import compensated
from octavo.torch.run import inputs_of, rows_of, vectors_of

_log = logging.getLogger(__name__)

CLIPPED = 4096
"""Vectors that limits of groups are found and judged with, at most."""


class Calibrator:
    """Makes weights of layers that are quantized one after the other.

    module   the model, in which layers before are quantized already
    ways     of `octavo.evals.schemes.KINDS`; of several that is taken which errs least over held-out vectors
    batches  each a tensor, or a tuple or dict of arguments of the module

    "qronos" also corrects for what layers before err: a copy of the model runs beside it. With one of "gptq" and
    "qronos" sums over vectors are kept, with several ways all vectors of a layer, 4 K bytes each.
    """

    def __init__(
        self, module: nn.Module, scheme: CheckpointScheme, ways: Sequence[str], batches: Sequence[Any]
    ) -> None:  # fmt: skip
        self._module, self._scheme, self._ways, self._batches = module, scheme, ways, batches
        self._original = deepcopy(module) if "qronos" in ways else None

    def weight(self, layer: nn.Linear, name: str, calls: int) -> Coded:
        """The layer's weight in the scheme. Raises NonFiniteError where it is given NaN or Inf."""
        values: F32 = layer.weight.detach().float().cpu().numpy()
        if len(self._ways) == 1 and self._ways[0] in COMPENSATE:
            return self._compensated(layer, name, calls, values)
        most = CLIPPED if self._ways == ("clip",) else None
        given = vectors_of(self._module, layer, calls, self._batches, most)
        if not np.isfinite(given).all():
            raise NonFiniteError(f"the model computed NaN or Inf in what {name or 'the layer'} is given")
        original = None
        if self._original is not None:
            original = vectors_of(self._original, self._twin(name), calls, self._batches, most), None
        label = f"{name}.weight" if name else "weight"
        product = ProductInput((label,), layer.in_features, 0, given, None, original)
        made = Maker(self._scheme, product, None, self._ways, None).made(label, values)
        _log.info("%s: %s, error %.4g, nearest %.4g", label, made.how, *_relative(made.after, made.before, made.power))
        return made.coded

    def _compensated(self, layer: nn.Linear, name: str, calls: int, values: F32) -> Coded:
        """The weight by sums over what the layer is given."""
        cross = CrossHessian(layer.in_features, name)
        for batch in self._batches:
            now = inputs_of(self._module, layer, calls, batch)
            then = now if self._original is None else inputs_of(self._original, self._twin(name), calls, batch)
            self._add(cross, now, then)
        matrix = None if self._original is None else cross.cross()
        return compensated(self._scheme, values, cross.hessian.matrix(), cross=matrix)

    def _add(self, cross: CrossHessian, now: Sequence[Tensor], then: Sequence[Tensor]) -> None:
        for x, y in zip(now, then, strict=True):
            cross.add(rows_of(x), rows_of(y))

    def _twin(self, name: str) -> nn.Linear:
        """The layer of the original model."""
        assert self._original is not None
        twin = self._original.get_submodule(name)
        assert isinstance(twin, nn.Linear)
        return twin


def _relative(after: float, before: float, power: float) -> tuple[float, float]:
    """Roots of sums of squares over those of the outputs."""
    power = power or 1.0
    return (after / power) ** 0.5, (before / power) ** 0.5
