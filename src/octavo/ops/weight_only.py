"""Products of floats with stored tensors of any format, whose values are worked out as they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from octavo.errors import UsageError
from octavo.formats import QTensor
from octavo.formats import dequantize as decode
from octavo.formats.spec import F32
from octavo.ops import check
from octavo.ops.leading_dimensions import Leading
from octavo.ops.place import gpu_module, like, on_gpu, to_numpy, to_torch
from octavo.ops.types import Array

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 22
"""Values of a weight that are decoded at a time."""


def matmul(x: Array, weight: QTensor) -> Array:
    """y [..., N] float32 of x [..., K], float32, float16 or bfloat16, and a stored weight [N, K] of any format.

    Activations stay floats: this is what a weight's error alone does to a product. On the CPU the first product of up
    to 64 tokens with a quantized weight packs it, and the copy is kept as long as `weight` lives; more tokens take,
    beside the result, memory for 16 MiB of decoded weights. On a GPU quantized weights are multiplied with x rounded to
    float16 (above 65,504: Inf), and the first product with a weight packs it and sends it to the device, where it stays
    as long as `weight` lives. Raises UsageError for other shapes and types.
    """
    _require_stored(weight)
    gpu, rows = on_gpu(x), Leading("x", x)
    if gpu:
        return cast("Array", rows.restored(gpu_module("matmul.w4a16.weight_only").matmul_stored(rows.flat(x), weight)))
    given = to_numpy(rows.flat(x))
    check.matrix("x", given, check.FLOATS)
    if len(weight.shape) != 2:
        raise UsageError(f"weight is {weight!r}, not a matrix")
    n, k = weight.shape
    check.same_k(given, n, k)
    values = np.ascontiguousarray(given, np.float32)
    from octavo.backends.cpu.matmul.stored_weight import float_product

    few = float_product(values, weight)
    if few is not None:
        return cast("Array", rows.restored(like(x, few)))
    out = np.empty((len(values), n), np.float32)
    step = max(1, CHUNK // max(k, 1))
    stored = weight.stored()
    for start in range(0, n, step):
        part = stored.rows(slice(start, min(start + step, n)))
        decoded = decode(QTensor(weight.format, (len(part), k), part, weight.name))
        np.matmul(values, decoded.T, out=out[:, start : start + len(part)])
    return cast("Array", rows.restored(like(x, out)))


@overload
def dequantize(weight: QTensor, device: None = None) -> F32: ...
@overload
def dequantize(weight: QTensor, device: str | torch.device) -> torch.Tensor: ...


def dequantize(weight: QTensor, device: str | torch.device | None = None) -> F32 | torch.Tensor:
    """The values of a stored tensor of any format, float32 of its shape: NumPy, or a torch tensor on a device, where a
    GPU's are worked out there."""
    _require_stored(weight)
    if device is None:
        return decode(weight)
    import torch

    where = torch.device(device)
    values = (
        to_torch(decode(weight))
        if _on_host(where)
        else gpu_module("matmul.w4a16.weight_only").dequantize_stored(weight)
    )
    moved: torch.Tensor = values.to(where)
    return moved


def _require_stored(weight: object) -> None:
    if not isinstance(weight, QTensor):
        raise UsageError(f"weight is {type(weight).__name__} (allowed: a QTensor, as of quantize_reference or a file)")


def _on_host(device: Any) -> bool:
    return bool(device.type == "cpu")
