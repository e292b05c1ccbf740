"""Weights of a scheme by the ways that methods try, where a model's values and Hessians are on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from octavo.calibrate.hessian import factorize
from octavo.calibrate.hessian.torch_hessian import TorchCross, TorchFactor, rounded_factors
from octavo.calibrate.methods.gptq import DAMP
from octavo.calibrate.methods.gptq.schemes import gptq_coded, gptq_row
from octavo.calibrate.schemes.weights import GPTQ_WAYS, Part, WeightQuantizer, of_expert
from octavo.calibrate.torch_rows import TorchPlanes, decoded, encoder_of, finite_values, tensor_of
from octavo.errors import tensor_label
from octavo.formats import QTensor
from octavo.huggingface.coded import Coded, nearest, planes_of, values_of
from octavo.huggingface.schemes import CheckpointScheme


def placed_values(scheme: CheckpointScheme, coded: Sequence[Coded], device: str) -> Tensor:
    """What `values_of` gives for weights [N, K] on a device, one after the other."""
    parts = [_placed(scheme, one, device) for one in coded]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _placed(scheme: CheckpointScheme, coded: Coded, device: str) -> Tensor:
    planes, fmt = planes_of(scheme, coded)
    if fmt.folds or fmt.number is not None or coded.factor != 1:
        return tensor_of(values_of(scheme, coded), device)
    return decoded(TorchPlanes.of(planes, device), fmt)


class TorchWeightQuantizer(WeightQuantizer):
    """A `WeightQuantizer` whose weights, Hessians and errors are tensors; what has no way on a device is made on the
    host."""

    def all_made(self, tensors: Mapping[str, QTensor]) -> dict[str, Part]:
        device = self._given.device
        assert device is not None
        found: dict[str, Part] = {}
        for name, tensor in tensors.items():
            label = tensor_label(name, self._expert)
            found[name] = self._part(name, finite_values(of_expert(tensor, self._expert), device, label), device)
        return found

    def _part(self, name: str, weight: Tensor, device: str) -> Part:
        """The weight [N, K] by the way that errs least."""
        tried = {way: self._made_by(way, name, weight) for way in self._ways}
        errors = self._errors_of(weight)
        wrong = {way: errors.wrong(placed_values(self._scheme, [coded], device)) for way, coded in tried.items()}
        best = min(wrong, key=lambda way: wrong[way])
        before = wrong["nearest"] if "nearest" in wrong else errors.wrong(_rounded(self._scheme, weight))
        return Part(tried[best], best, before, wrong[best], errors.power, wrong)

    def _made_by(self, way: str, name: str, weight: Tensor) -> Coded:
        """The weight by a way of KINDS."""
        if way not in GPTQ_WAYS or self._tensor_factor is None:
            values = weight.cpu().numpy()
            return self._clipped(name, values) if way == "clip" else nearest(self._scheme, values)
        factor, importance = self._tensor_factor
        cross, sums = None, self._tensor_cross
        hessian = factor.hessian
        if way == "qronos" and sums is not None:
            hessian, cross, importance = sums.hessian.matrix(), sums.cross(), None
        return gptq_coded(
            self._scheme, weight, hessian, importance=importance, cross=cross, factor=factor, threads=self._threads
        )

    def _errors_of(self, weight: Tensor) -> _Sums | _Outputs:
        """What tells errors: a Hessian, where it is of the tokens that judge and no larger than they are."""
        if self._judged is self._given and self._given.original is None and self._tokens >= self._given.size:
            return _Sums(*self._damped, self._tokens, weight)
        given = self._judged
        alone = given.original is None
        pairs = ((x, x) for x in given.tensors(self._expert)) if alone else given.tensor_pairs(self._expert)
        return _Outputs(list(pairs), weight)

    @cached_property
    def _tokens(self) -> int:
        if self._given.original is None:
            return self._given.tokens(self._expert)
        return sum(len(now) for now, _ in self._given.tensor_pairs(self._expert))

    @cached_property
    def _damped(self) -> tuple[Tensor, float]:
        """The Hessian, and what was added to its diagonal."""
        if self._tensor_factor is not None:
            return self._tensor_factor[0].hessian, self._tensor_factor[0].added
        return self._given.tensor_hessian(self._expert).matrix().float(), 0.0

    @cached_property
    def _tensor_factor(self) -> tuple[TorchFactor, np.ndarray | None] | None:
        """Of the Hessian, and its diagonal; None where no way needs them."""
        if not set(GPTQ_WAYS) & set(self._ways) or gptq_row(self._scheme, self._given.size) is None:
            return None
        sums = self._given.tensor_hessian(self._expert) if self._tensor_cross is None else self._tensor_cross.hessian
        hessian = sums.matrix()
        diagonal = hessian.diagonal().float().cpu().numpy()
        return factorize(hessian, "act", DAMP, keep=False), diagonal

    @cached_property
    def _tensor_cross(self) -> TorchCross | None:
        """Products with what the original model gives, where that is run."""
        return None if self._given.original is None else self._given.tensor_cross(self._expert)


def _rounded(scheme: CheckpointScheme, weight: Tensor) -> Tensor:
    """What a weight [N, K] is worth when it is rounded to nearest."""
    fmt = scheme.format(weight.shape[1])
    encoder = encoder_of(fmt)
    if encoder is None:
        return placed_values(scheme, [nearest(scheme, weight.cpu().numpy())], str(weight.device))
    return decoded(encoder(weight), fmt)


class _Outputs:
    """Outputs of a product over some tokens: pairs of vectors now and as they were."""

    def __init__(self, pairs: list[tuple[Tensor, Tensor]], weight: Tensor) -> None:
        self._pairs, self._weight = pairs, weight
        with rounded_factors():
            self.power = sum(_squares(then @ weight.T) for _, then in pairs)

    def wrong(self, values: Tensor) -> float:
        """The sum of |y' - y|^2 of outputs y' with `values` for the weight."""
        with rounded_factors():
            return sum(_squares(now @ values.T - then @ self._weight.T) for now, then in self._pairs)


class _Sums:
    """The same by a Hessian with something `added` to its diagonal."""

    def __init__(self, hessian: Tensor, added: float, tokens: int, weight: Tensor) -> None:
        self._hessian, self._added, self._tokens, self._weight = hessian, added, tokens, weight
        self.power = self._squares_of(weight)

    def wrong(self, values: Tensor) -> float:
        return self._squares_of(values - self._weight)

    def _squares_of(self, rows: Tensor) -> float:
        with rounded_factors():
            slope = (rows @ self._hessian).sub_(rows, alpha=self._added)
        return self._tokens * float(slope.mul_(rows).sum(1).double().sum())


def _squares(x: Tensor) -> float:
    return float(x.square().sum(1).double().sum())
