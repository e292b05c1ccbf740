"""Products of numbers of 8 and 4 bits, and what makes their operands, as functions.

    codes, scale = octavo.ops.quantize_int8(x, "token")                     # [M, K] -> int8 [M, K], float32 [M, 1]
    weight = octavo.ops.quantize_w4a8(w, group=128)                         # [N, K]
    y = octavo.ops.w4a8_gemm(codes, weight, scale, bias=bias, activation="silu")  # [M, N]

They take NumPy arrays or torch tensors and return the same kind; where a tensor lies says which kernels compute.
Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.ops.op_products import fp8_gemm, int8_gemm, w4a8_gemm
    from octavo.ops.qqq import export_qqq, import_qqq
    from octavo.ops.quantize import mmq_layout, quantize_fp8, quantize_int8, quantize_mmq_q8_1, quantize_q8_1
    from octavo.ops.w4a8 import W4A8Weight, quantize_w4a8
    from octavo.ops.weight_only import dequantize, matmul

__all__ = [
    "W4A8Weight",
    "dequantize",
    "export_qqq",
    "fp8_gemm",
    "import_qqq",
    "int8_gemm",
    "matmul",
    "mmq_layout",
    "quantize_fp8",
    "quantize_int8",
    "quantize_mmq_q8_1",
    "quantize_q8_1",
    "quantize_w4a8",
    "w4a8_gemm",
]

__getattr__ = names_from(__name__, {
    "octavo.ops.op_products": ["fp8_gemm", "int8_gemm", "w4a8_gemm"],
    "octavo.ops.qqq": ["export_qqq", "import_qqq"],
    "octavo.ops.quantize": ["mmq_layout", "quantize_fp8", "quantize_int8", "quantize_mmq_q8_1", "quantize_q8_1"],
    "octavo.ops.w4a8": ["W4A8Weight", "quantize_w4a8"],
    "octavo.ops.weight_only": ["dequantize", "matmul"],
})
