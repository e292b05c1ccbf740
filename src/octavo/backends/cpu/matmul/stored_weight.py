"""Products of NumPy arrays with stored weights, by the kernels that models run with, as one program of kernel calls."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from octavo.backends.cores import cores
from octavo.formats import QTensor
from octavo.formats.activation import activation
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, AnyArray
from octavo.jit.prepare import end_progress, prepare
from octavo.jit.program import Program

FEW = 64
"""Tokens up to which `float_product` is faster than decoding weights for BLAS."""

PARTS = 3
"""8-bit numbers that a float of a block becomes: each holds seven bits of what those before it leave."""


class StoredWeight:
    """A matrix [N, K] of a block format in the layout of the kernels, a copy of its own. K is a multiple of 32."""

    def __init__(self, tensor: QTensor) -> None:
        prepare()
        from octavo.backends.cpu.device.large_pages import Arena
        from octavo.backends.cpu.weights.pack import pack

        self._weight = pack(tensor, cores(), Arena())
        end_progress()

    def product(self, x: F32) -> F32:
        """y float32 [M, N] of x [M, K]: codes are multiplied with x in q8_1, e4m3 numbers with x as it is.

        Raises NonFiniteError at the first NaN or Inf.
        """
        from octavo.backends.cpu.launch.calls import quantize_rows
        from octavo.backends.cpu.launch.plan_memory import PlanMemory
        from octavo.backends.cpu.matmul.launch import product
        from octavo.backends.cpu.matmul.quantize_kernel import TILES, TOKEN_BYTES
        from octavo.backends.cpu.weights.pack import TiledWeight

        weight, (m, k) = self._weight, x.shape
        out = np.empty((m, weight.n), np.float32)
        if not out.size:
            return out
        given: AnyArray = np.ascontiguousarray(x, np.float32)
        require_finite(given, "x")
        calls = []
        if isinstance(weight, TiledWeight):
            codes = _aligned(m * (k // 32) * TOKEN_BYTES)
            calls.append(quantize_rows(given, codes, TILES[0]))
            given = codes
        Program([*calls, *product(weight, given, out, (), PlanMemory(threads=cores()))], cores())()
        end_progress()
        return out


_packed: WeakKeyDictionary[QTensor, StoredWeight] = WeakKeyDictionary()
"""Tensors in the layout of the kernels, for as long as somebody holds them."""


def float_product(x: F32, tensor: QTensor) -> F32 | None:
    """y float32 [M, N] of finite x [M, K] and a quantized matrix, to float32's rounding, or None where BLAS is for it.

    Weights are decoded in registers, by the kernels of integer dots: x is the sum of three 8-bit numbers with a
    scale for each 32 values, and each part is a token of one product. The first product packs the tensor, and the copy
    is kept as long as `tensor` lives.
    """
    m, k = x.shape
    if m > FEW or not x.size or tensor.format.number is not None or k % 32 or not np.isfinite(x).all():
        return None
    quantize = activation("q8_1").quantize
    assert quantize is not None
    parts, rest = [], x
    for _ in range(PARTS):
        parts.append(quantize(rest).dequantize())
        rest = rest - parts[-1]
    weight = _packed.get(tensor)
    if weight is None:
        weight = _packed[tensor] = StoredWeight(tensor)
    y = weight.product(np.concatenate(parts)).reshape(PARTS, m, -1)
    total: F32 = y[0] + (y[1] + y[2])
    return total


def _aligned(nbytes: int) -> AnyArray:
    """Bytes that begin at a cache line, as the kernels read them."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]
