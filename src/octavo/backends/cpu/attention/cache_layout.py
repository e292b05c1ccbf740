# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""How keys and values lie in the KV cache, of every type, and what the loops over all types have in common.

A head's keys of a page lie so that 64 positions are side by side, and no sum crosses lanes; its values in columns of
32 (16 where D is not a multiple of 32). q8_0 has a scale for 32 of D, and 64 scales, one a position, before the codes.
int8 and fp8 have one for a head's key or value at a position, 64 before all codes; where scales are static, none.

    f16, f32   keys [pages, Hkv, D, 64], values [pages, Hkv, D / 32, 64, 32]
    fp8        keys [pages, Hkv, 64 f32 scales and D x 64 e4m3],
               values [pages, Hkv, 64 f32 scales and D / 32 x 64 x 32 e4m3]
    q8_0       keys [pages, Hkv, D / 32, 64 f16 scales and 32 x 64 s8],
               values [pages, Hkv, D / 32, 64 f16 scales and 64 x 32 s8]
    int8, int4  as `cache_int8_kernel.py` and `cache_int4_kernel.py` say

So a head's part of a page is in one piece that is read from its first byte to its last.
"""

from __future__ import annotations

from typing import Literal, cast

from numba import float32

from octavo.formats.spec import F32
from octavo.graph.node import PAGE_SIZE
from octavo.jit import host_cpu
from octavo.jit.compile import exact
from octavo.jit.simd import (
    f32_pointer,
    largest_magnitude,
    load_f16x16,
    load_f32x16,
    mul,
    prefetch_to_l2,
    store_f32x16,
)

assert PAGE_SIZE == 64  # a page's scores are four vectors of 16

Kind = Literal["f16", "f32", "q8_0", "int8", "int8_static", "fp8", "fp8_static", "int4"]
SUMS = 16 if "avx512f" in host_cpu.features() else 4
"""Vectors of sums that a loop keeps: as many as leave registers for the rest. With AVX2 each is two of 16 registers."""

WIDTH = {"f16": 2, "f32": 4, "q8_0": 1, "int8": 1, "int8_static": 1, "fp8": 1, "fp8_static": 1}
"""Bytes of a number."""
SCALES = 2 * PAGE_SIZE
"""Bytes of the scales before the codes of 32 of D, in q8_0 and int4."""
ROW_SCALES = 4 * PAGE_SIZE
"""Bytes of the scales before all codes, in int8 and fp8."""


def kind_of(dtype: str, static: F32 | None) -> Kind:
    """How kernels call a cache of this type."""
    return cast(Kind, dtype if static is None else f"{dtype}_static")


def head_bytes(kind: Kind, dim: int) -> int:
    """Bytes of a head's keys, or values, in a page."""
    if kind == "int4":
        return dim // 32 * (SCALES + PAGE_SIZE * 16)
    scales = {"q8_0": SCALES * (dim // 32), "int8": ROW_SCALES, "fp8": ROW_SCALES}
    return PAGE_SIZE * dim * WIDTH[kind] + scales.get(kind, 0)


def score_width(n: int) -> int:
    """Vectors of a page's scores that are summed at a time, for n queries: those of the page are whole parts of 4."""
    return max((width for width in (4, 2) if n * width <= SUMS), default=1)


def value_columns(dim: int) -> int:
    """Columns of a head's values that lie side by side."""
    return 32 if dim % 32 == 0 else 16


@exact
def fetch(address, nbytes):
    """Ask for bytes that are read much later: the first level of the cache would have to wait for each line itself."""
    for i in range(0, nbytes, 64):
        prefetch_to_l2(address + i)


@exact
def larger(x, y):
    """The larger of two numbers, NaN if one is."""
    if x != x or x > y:  # noqa: PLR0124 - NaN
        return x
    return y


@exact
def largest_of(x, dim):
    """The largest magnitude of `dim` floats, NaN if one is."""
    largest = float32(0.0)
    for i in range(0, dim, 16):
        values = load_f32x16(x + 4 * i)
        largest = larger(largest, largest_magnitude(values, values))
    return largest


@exact
def scale_row(weights, scales, rows):
    """weights [64] times 64 scales, those from `rows` on 0: what lies there may be no number."""
    for i in range(0, 256, 64):
        store_f32x16(weights + i, mul(load_f32x16(weights + i), load_f32x16(scales + i)))
    for i in range(rows, PAGE_SIZE):
        f32_pointer(weights)[i] = float32(0.0)


@exact
def scale_row_f16(out, weights, scales, rows):
    """out [64] = weights times 64 f16 scales, those from `rows` on 0."""
    for i in range(4):
        store_f32x16(out + 64 * i, mul(load_f32x16(weights + 64 * i), load_f16x16(scales + 32 * i)))
    for i in range(rows, PAGE_SIZE):
        f32_pointer(out)[i] = float32(0.0)
