"""What binders of several ops use."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.kernels import elementwise, float_mul_mat, mul_mat, quantize
from octavo.backends.cpu.pack import FloatWeight, QuantWeight
from octavo.formats.spec import AnyArray
from octavo.jit.program import KernelCall, address

Weight = QuantWeight | FloatWeight

Shared = dict[Any, Any]
"""What the nodes of a plan have in common, made by the first that needs it."""


def stride(array: AnyArray) -> int:
    """Bytes from one row to the next."""
    return array.strides[0]


FLOAT_TILES = tuple(n for n in quantize.TILES if n <= 8)
"""Rows of as many floats lie in one set of the first cache where K is a multiple of 1,024: 8 places it has."""


def tiles_of(weight: Weight) -> tuple[int, ...]:
    """Tokens of the tiles that products with a weight are made of, the largest first."""
    return quantize.TILES if isinstance(weight, QuantWeight) else FLOAT_TILES


def product_kernel(weight: Weight, n: int) -> Any:
    """The kernel of products for tiles of n tokens."""
    if isinstance(weight, QuantWeight):
        return mul_mat.mul_mat_kernel(weight.layout, n)
    return float_mul_mat.float_mul_mat_kernel(weight.kind, n)


def copy_rows(out: AnyArray, x: AnyArray, rows: AnyArray) -> KernelCall:
    """out[i] = x[rows[i]], float32."""
    args = [address(out), stride(out), address(x), stride(x), address(rows), x.shape[1]]
    return KernelCall(elementwise.copy_rows_kernel(), args, len(out), keep=(x, rows, out))


def quantize_rows(x: AnyArray, codes: AnyArray, tile: int) -> KernelCall:
    """Codes of x [T, K] in tiles of `tile` tokens."""
    tokens, k = x.shape
    tiles, chunks = quantize.tasks_of(tokens, k, tile)
    args = [address(codes), tokens, k, address(x), stride(x), chunks, 0, 0]
    return KernelCall(quantize.quantize_kernel("values", tile), args, tiles * chunks, keep=(x, codes))
