"""What binders of several ops use."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul import float_kernel as float_mul_mat
from octavo.backends.cpu.matmul import kernel as mul_mat
from octavo.backends.cpu.matmul import quantize_kernel as quantize
from octavo.backends.cpu.pointwise import kernel as elementwise
from octavo.backends.cpu.weights.pack import TiledFloatWeight, TiledWeight
from octavo.formats.spec import AnyArray
from octavo.jit.program import KernelCall

Weight = TiledWeight | TiledFloatWeight


def stride(array: AnyArray) -> int:
    """Bytes from one row to the next."""
    return array.strides[0]


FLOAT_TILES = tuple(n for n in quantize.TILES if n <= 8)
"""Rows of as many floats lie in one set of the first cache where K is a multiple of 1,024: 8 places it has."""


def tiles_of(weight: Weight) -> tuple[int, ...]:
    """Tokens of the whole tiles that products with a weight are made of, the largest first; see `quantize.TILES`."""
    return quantize.TILES if isinstance(weight, TiledWeight) else FLOAT_TILES


def product_kernel(weight: Weight, n: int, tiles: int = 1) -> Any:
    """The kernel of products for `tiles` tiles of n tokens."""
    if isinstance(weight, TiledWeight):
        if mul_mat.stages(n, tiles):
            return mul_mat.staged_mul_mat_kernel(weight.layout, n)
        return mul_mat.mul_mat_kernel(weight.layout, n)
    return float_mul_mat.float_mul_mat_kernel(weight.kind, n, weight.group)


def weight_arguments(weight: Weight) -> dict[str, int]:
    """What a product's kernel is told of a weight, but for where its rows lie."""
    table, scales = (weight.table_address, 0) if isinstance(weight, TiledWeight) else (0, weight.scale_address)
    return {"rows": weight.n, "k": weight.k, "x_stride": x_stride(weight), "table": table, "scales": scales}


def x_stride(weight: Weight) -> int:
    """Bytes of a token's activations, as the kernels of products with a weight read them, without gaps."""
    return weight.k // 32 * quantize.TOKEN_BYTES if isinstance(weight, TiledWeight) else weight.k * 4


def rows_call(kernel: Any, out: AnyArray, x: AnyArray, **more: int | float | AnyArray) -> KernelCall:
    """A kernel with a task for each row of y, which is `out`, and of x."""
    return KernelCall(kernel, len(out), y=out, y_stride=stride(out), x=x, x_stride=stride(x), **more)


def copy_rows(out: AnyArray, x: AnyArray, rows: AnyArray) -> KernelCall:
    """out[i] = x[rows[i]], float32."""
    return KernelCall(
        elementwise.copy_rows_kernel(), len(out),
        y=out, y_stride=stride(out), x=x, x_stride=stride(x), rows=rows, k=x.shape[1],
    )


def quantize_rows(x: AnyArray, codes: AnyArray, tile: int) -> KernelCall:
    """Codes of x [T, K] in tiles of `tile` tokens."""
    tokens, k = x.shape
    tiles, chunks = quantize.tasks_of(tokens, k, tile)
    return KernelCall(
        quantize.quantize_kernel("values", tile), tiles * chunks,
        codes=codes, tokens=tokens, k=k, x=x, x_stride=stride(x), chunks=chunks,
        other=0, other_stride=0, eps=0.0,
    )
