"""Products of quantized weights with activations that are not quantized, on torch tensors: `matmul` with weights on the
device; `matmul_stored` and `dequantize_stored` with tensors as files have them."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import torch

from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.dequantize_kernel import dequantize_kernel
from octavo.backends.gpu.matmul.launch import halves_product
from octavo.backends.gpu.matmul.matvec.matvec_shape import MATVEC_MAX_TOKENS
from octavo.backends.gpu.matmul.w4a16.weight_only_kernel import weight_only_kernel
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.backends.gpu.weights.load import load
from octavo.errors import UsageError
from octavo.formats import QTensor

MOST = 8
"""Tokens up to which weights are dequantized where they are multiplied; beyond, in memory for the library."""


def matmul(c: Context, x: torch.Tensor, w: QuantWeight) -> torch.Tensor:
    """float32 [T, n] = x [T, k] @ w.T, of weights on the device of `c`.

    x is any float type and is rounded to float16, all sums are float32. Up to `MOST` tokens weights become float32 in
    registers; for more they become float16 in memory that all products share. Raises UsageError where x does not fit.
    """
    if x.ndim != 2 or x.shape[1] != w.k or not x.is_floating_point():
        raise UsageError(f"x is {x.dtype} {list(x.shape)} (allowed: floats [tokens, {w.k}])")
    _require_same_device(x, next(iter(w.parts.values())))
    y = torch.empty((len(x), w.n), dtype=torch.float32, device=x.device)
    if not len(x):
        return y
    halves = torch.zeros((len(x), w.kp), dtype=torch.float16, device=x.device)
    halves[:, : w.k] = x
    if len(x) > MOST:
        _many(c, w, halves, y)
    else:
        _few(c, w, halves, y)
    return y


_loaded: WeakKeyDictionary[QTensor, QuantWeight | FloatWeight] = WeakKeyDictionary()
"""Stored tensors on the device, for as long as somebody holds them in the host's memory."""


def matmul_stored(x: torch.Tensor, tensor: QTensor) -> torch.Tensor:
    """float32 [T, n] = x [T, k] @ w.T, of a stored tensor [n, k] of any format.

    The weight is packed and sent to the device by the first product with it, and stays there as long as `tensor` lives.
    Quantized weights take x as `matmul` does; floats are multiplied in float32. Raises UsageError where x does not fit.
    """
    if len(tensor.shape) != 2:
        raise UsageError(f"weight is {tensor!r}, not a matrix")
    n, k = tensor.shape
    if x.ndim != 2 or x.shape[1] != k or not x.is_floating_point():
        raise UsageError(f"x is {x.dtype} {list(x.shape)} (allowed: floats [tokens, {k}])")
    if not len(x) * n * k:
        return torch.zeros((len(x), n), dtype=torch.float32, device=x.device)
    weight = _loaded.get(tensor)
    if weight is None:
        weight = _loaded[tensor] = load(tensor, torch_device.target().device)
    if isinstance(weight, FloatWeight):
        _require_same_device(x, weight.data)
        return x.float() @ weight.data[0].float().T
    return matmul(Context(torch_device.target()), x, weight)


def dequantize_stored(tensor: QTensor) -> torch.Tensor:
    """float32 of a stored tensor's shape, on the device, from its packed bytes."""
    *leading, k = tensor.shape
    n = math.prod(leading)
    if not n * k:
        return torch.zeros(tensor.shape, dtype=torch.float32, device=torch_device.target().device)
    rows = QTensor(tensor.format, (n, k), tensor.data.reshape(n, -1), tensor.name)
    c = Context(torch_device.target())
    w = load(rows, c.target.device)
    if isinstance(w, FloatWeight):
        return w.data.float().reshape(tensor.shape)
    out = torch.empty((n, k), dtype=torch.float32, device=c.target.device)
    height, chunks = dispatch.unpacking(w.kp)
    grid = (-(-n // height), -(-w.kp // (32 * chunks)))
    c.launch(
        dequantize_kernel, grid, w.planes(), None, matrix(out), n, n, k, BLOCK_N=height, CHUNKS=chunks,
        ASM=c.target.asm,
    )()
    return out.reshape(tensor.shape)


def _require_same_device(x: torch.Tensor, weight: torch.Tensor) -> None:
    if x.device != weight.device:
        raise UsageError(f"x is on {x.device}, but the weight is on {weight.device}")


def _few(c: Context, w: QuantWeight, x: torch.Tensor, y: torch.Tensor) -> None:
    shape = dispatch.matvec(w.layout, w.n, w.kp, min(len(x), MATVEC_MAX_TOKENS), c.target.arch)
    c.launch(
        weight_only_kernel, (-(-w.n // shape.block_n),), w.planes(), matrix(x.view(torch.int32)), matrix(y), w.n,
        TOKENS=len(x), shape=shape, ASM=c.target.asm, warps=shape.warps,
    )()


def _many(c: Context, w: QuantWeight, x: torch.Tensor, y: torch.Tensor) -> None:
    for call in halves_product(c, w, x, y):
        call()
