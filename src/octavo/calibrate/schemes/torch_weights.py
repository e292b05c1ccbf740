"""Weights of a scheme by the ways that methods try, where a model's values and Hessians are on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.calibrate.hessian.torch_hessian import rounded_factors
from octavo.calibrate.runner import ProductInput
from octavo.calibrate.schemes.scheme_weights import Judge, WeightQuantizer, of_expert
from octavo.calibrate.torch_rows import TorchPlanes, decoded, encoder_of, finite_values, tensor_of
from octavo.errors import tensor_label
from octavo.formats import QTensor
from octavo.huggingface.scheme_weight import Coded, nearest, planes_of, values_of
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

    @property
    def _device(self) -> str:
        assert self._given.device is not None
        return self._given.device

    def _weight(self, name: str, tensor: QTensor) -> Tensor:
        return finite_values(of_expert(tensor, self._expert), self._device, tensor_label(name, self._expert))

    def _values(self, coded: Coded) -> Tensor:
        return placed_values(self._scheme, [coded], self._device)

    def _nearest_values(self, weight: Tensor) -> Tensor:
        fmt = self._scheme.format(weight.shape[1])
        encoder = encoder_of(fmt)
        if encoder is None:
            return self._values(nearest(self._scheme, weight.cpu().numpy()))
        return decoded(encoder(weight), fmt)

    def _judge(self, weight: Tensor) -> Judge:
        return self._judge_by(_TorchSums, _TorchOutputs, weight)


class _TorchOutputs:
    """Outputs of a product over some tokens: pairs of vectors now and as they were."""

    def __init__(self, given: ProductInput, expert: int | None, weight: Tensor) -> None:
        alone = given.original is None
        self._pairs = [(x, x) for x in given.tensors(expert)] if alone else list(given.tensor_pairs(expert))
        self._weight = weight
        with rounded_factors():
            self.power = sum(_squares(then @ weight.T) for _, then in self._pairs)

    def wrong(self, values: Tensor) -> float:
        """The sum of |y' - y|^2 of outputs y' with `values` for the weight."""
        with rounded_factors():
            return sum(_squares(now @ values.T - then @ self._weight.T) for now, then in self._pairs)


class _TorchSums:
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
