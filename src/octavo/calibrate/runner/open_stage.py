"""A stage before it is run: what its products are given, and their weights, which may be replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from octavo.calibrate.arrays import is_tensor
from octavo.calibrate.runner.product_input import ProductInput
from octavo.errors import UsageError, tensor_label
from octavo.formats import PlacedQTensor, QTensor, by_name, dequantize
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class OpenStage:
    """A stage that is about to be run: what its products are given, and their weights, which may be replaced.

    number  of the stage
    layer   of its weights, None for those of no layer
    inputs  of its products, each once
    device  what torch calls the device on which weights are to be made; None: on the host
    """

    number: int
    layer: int | None
    inputs: Sequence[ProductInput]
    device: str | None
    _tensors: Mapping[str, QTensor]
    _replaced: dict[str, QTensor] = field(default_factory=dict)

    def tensor(self, name: str) -> QTensor:
        """A weight as it is stored. Raises UsageError for one that is not of this stage."""
        if name not in self._tensors:
            raise UsageError(f"{name!r} is not a weight of this stage (allowed: {', '.join(self._tensors)})")
        return self._tensors[name]

    def weight(self, name: str) -> F32:
        """A weight's values, float32 [N, K] or [experts, N, K]. Raises NonFiniteError, naming it, for NaN or Inf."""
        values = dequantize(self.tensor(name))
        require_finite(values, tensor_label(name))
        return values

    def part(self, name: str, expert: int | None) -> F32 | Tensor:
        """A weight's values, or an expert's, float32 [N, K], where weights are made. Raises as `weight` does."""
        tensor = self.tensor(name).stored()
        if expert is not None:
            tensor = QTensor(tensor.format, tensor.shape[1:], tensor.data[expert], name)
        if self.device is None:
            values = dequantize(tensor)
            require_finite(values, tensor_label(name, expert))
            return values
        from octavo.calibrate.torch_rows import finite_values

        return finite_values(tensor, self.device, tensor_label(name, expert))

    def replace(self, name: str, values: F32 | Tensor) -> None:
        """Run this stage with other values of a weight, float32, finite, in its shape."""
        tensor = self.tensor(name)
        if is_tensor(values):
            assert values.shape == tensor.shape
            self._replaced[name] = PlacedQTensor(by_name("F32"), values, name)
            return
        if values.shape != tensor.shape or values.dtype != np.float32 or not np.isfinite(values).all():
            found = f"{values.dtype} {list(values.shape)}"
            raise UsageError(f"{name}: {found} (allowed: finite float32 {list(tensor.shape)})", argument="values")
        self._replaced[name] = as_weight(name, values)


def as_weight(name: str, values: F32) -> QTensor:
    """Values as a stored tensor of F32."""
    values = np.ascontiguousarray(values, np.float32)
    return QTensor(by_name("F32"), values.shape, values.view(np.uint8), name)
