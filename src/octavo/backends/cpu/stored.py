"""Products of NumPy arrays with stored weights, by the kernels that models run with, as one program of kernel calls."""

from __future__ import annotations

import numpy as np

from octavo.backends.cores import cores
from octavo.formats import QTensor
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, AnyArray
from octavo.jit.prepare import end_progress, prepare
from octavo.jit.program import Program


class StoredWeight:
    """A matrix [N, K] of a block format in the layout of the kernels, a copy of its own. K is a multiple of 32."""

    def __init__(self, tensor: QTensor) -> None:
        prepare()
        from octavo.backends.cpu.pack import pack
        from octavo.backends.cpu.pages import Arena

        self._weight = pack(tensor, cores(), Arena())
        end_progress()

    def product(self, x: F32) -> F32:
        """y float32 [M, N] of x [M, K]: codes are multiplied with x in q8_1, e4m3 numbers with x as it is.

        Raises NonFiniteError at the first NaN or Inf.
        """
        from octavo.backends.cpu.calls import quantize_rows
        from octavo.backends.cpu.kernels.quantize import TILES, TOKEN_BYTES
        from octavo.backends.cpu.pack import QuantWeight
        from octavo.backends.cpu.products import product
        from octavo.backends.cpu.shared import Shared

        weight, (m, k) = self._weight, x.shape
        out = np.empty((m, weight.n), np.float32)
        if not out.size:
            return out
        given: AnyArray = np.ascontiguousarray(x, np.float32)
        require_finite(given, "x")
        calls = []
        if isinstance(weight, QuantWeight):
            codes = _aligned(m * (k // 32) * TOKEN_BYTES)
            calls.append(quantize_rows(given, codes, TILES[0]))
            given = codes
        Program([*calls, *product(weight, given, out, (), Shared())], cores())()
        end_progress()
        return out


def _aligned(nbytes: int) -> AnyArray:
    """Bytes that begin at a cache line, as the kernels read them."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]
