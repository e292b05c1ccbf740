# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of float weights (f32, f16, bf16, e4m3) and float activations, and look-ups of their rows.

Algorithm: GEMM by outer products of registers: 16 rows interleaved, as BLIS packs panels; GEMV with one token.
Tile:
    W   [N / 16, K, 16]: 16 rows are 16 lanes, each k is one vector
    acc [n tokens, 16] in registers, even and odd k apart: += W[k] * x[token, k]
Bound: bytes with one token, 93% of the read limit of a core of Zen 5 with BF16, 77% with e4m3 (docs/log.md, "Float
    weights wanted fetching ahead, and a loop of four k"); instructions with many: 206 GFLOPS with tiles of 16 tokens
    where K is 4160, 97 where it is 4096 (docs/log.md, "Sixteen rows at a stride of a multiple of 4 KiB do not fit a
    set of the first cache").
Tried: docs/log.md: "Sixteen rows at a stride of a multiple of 4 KiB do not fit a set of the first cache"; "e4m3 becomes
    float32 through float16".
Twin: `octavo.backends.reference.ops.mul_mat`, `octavo.backends.reference.ops.get_rows`

Weights of e4m3 have a float32 scale for each row, or for each `group` of its values, [N / 16, K / group, 16], 256 times
as large as what they mean (see `load_e4m3x16`), or NaN where one of them is.
"""

from __future__ import annotations

from typing import Any, Literal

from octavo.backends.cpu.matmul.rows_kernel import GET_ROWS
from octavo.backends.cpu.matmul.tasks import AHEAD, PRODUCT, product
from octavo.jit import host_cpu
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add_blocks,
    f32_pointer,
    fma_blocks,
    fma_splat_strided,
    get,
    i32_pointer,
    load_bf16x16,
    load_f16x16,
    load_f32x16,
    load_finite_e4m3x16,
    load_finite_e4m3x32,
    prefetch,
    stack,
    store_f32x16,
    zeros,
)

Kind = Literal["f32", "f16", "bf16", "e4m3"]
WIDTH: dict[Kind, int] = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1}
IN_TURN, PAIRS = 4, 128
"""Tokens from which even and odd k take turns with AVX2, whose registers hold one set of sums, and pairs of a turn."""
_LOADS = {"f32": load_f32x16, "f16": load_f16x16, "bf16": load_bf16x16, "e4m3": load_finite_e4m3x16}


@kernels(PRODUCT)
def float_mul_mat_kernel(kind: Kind, n: int, group: int = 0) -> Any:
    """The product for tiles of n tokens, float32; see `product`. Of e4m3 a row shares its scale where `group` is 0."""
    tile_width, scaled = 16 * WIDTH[kind], kind == "e4m3"
    accumulate = sums_function(kind, n)

    def sums_of_groups(a, task, x):
        groups, acc = a.k // group, zeros(n)
        w, scales = a.weights + task * (a.k * tile_width), a.scales + task * groups * 64
        for i in range(groups):
            part = accumulate(w + i * group * tile_width, x + i * group * 4, a.x_stride, group)  # n x [16]
            acc = fma_blocks(acc, part, load_f32x16(scales + i * 64))
        return acc

    def sums(a, task, x):
        acc = accumulate(a.weights + task * (a.k * tile_width), x, a.x_stride, a.k)  # n x [16]
        return fma_blocks(zeros(n), acc, load_f32x16(a.scales + task * 64)) if scaled else acc

    return product(n, inner(sums_of_groups if group else sums, kind, n, group, inline="always"))


def sums_function(kind: Kind, n: int, inline: str = "never") -> Any:
    """A function (w, x, stride, k) -> n vectors: of 16 rows, k vectors at w, their products with n tokens at x."""
    load, width, ahead, pair = _LOADS[kind], WIDTH[kind], AHEAD, pair_function(kind)

    def accumulate(w, x, stride, k):
        even, odd = zeros(n), zeros(n)  # n x [16] each
        for _four in range(k // 4):
            for line in range(0, 64 * width, 64):
                prefetch(w + ahead + line)
            one, two = pair(w)
            even = fma_splat_strided(even, one, x, stride)
            odd = fma_splat_strided(odd, two, x + 4, stride)  # n x [16] += [16] * [n]
            one, two = pair(w + 32 * width)
            even = fma_splat_strided(even, one, x + 8, stride)
            odd = fma_splat_strided(odd, two, x + 12, stride)
            w += 64 * width
            x += 16
        if k % 4 >= 2:
            one, two = pair(w)
            even = fma_splat_strided(even, one, x, stride)
            odd = fma_splat_strided(odd, two, x + 4, stride)
            w += 32 * width
            x += 8
        if k % 2:
            even = fma_splat_strided(even, load(w), x, stride)
        return add_blocks(even, odd)

    def accumulate_in_turn(w, x, stride, k):
        even, odd = zeros(n), zeros(n)  # n x [16] each
        for start in range(0, k // 2, PAIRS):
            stop = min(start + PAIRS, k // 2)
            for pair in range(start, stop):
                even = fma_splat_strided(even, load(w + 32 * width * pair), x + 8 * pair, stride)
            for pair in range(start, stop):
                odd = fma_splat_strided(odd, load(w + 32 * width * pair + 16 * width), x + 8 * pair + 4, stride)
        if k % 2:
            even = fma_splat_strided(even, load(w + 16 * width * (k - 1)), x + 4 * (k - 1), stride)
        return add_blocks(even, odd)

    made = accumulate_in_turn if host_cpu.level() == "avx2" and n >= IN_TURN else accumulate
    return inner(made, kind, n, inline, inline=inline)


def pair_function(kind: Kind) -> Any:
    """A function (address) -> the vectors of two k that lie there."""
    load, second_at = _LOADS[kind], 16 * WIDTH[kind]

    def pair(w):
        return load(w), load(w + second_at)

    def e4m3_pair(w):
        both = load_finite_e4m3x32(w)
        return get(both, 0), get(both, 1)

    return inner(e4m3_pair if kind == "e4m3" else pair, kind, inline="always")


@kernels(GET_ROWS)
def float_get_rows_kernel(kind: Kind, group: int = 0) -> Any:
    """Task t copies row rows[t] to y."""
    load, width, scaled, grouped = _LOADS[kind], WIDTH[kind], kind == "e4m3", group > 0

    def float_get_rows(a, task):
        k, row = a.k, i32_pointer(a.rows)[task]
        y = f32_pointer(a.y + task * a.y_stride)
        w = a.weights + row // 16 * 16 * k * width
        lane = row % 16
        values = stack(64)
        scale = f32_pointer(a.scales)[row] if scaled else 1.0
        for i in range(k):
            if grouped:
                scale = f32_pointer(a.scales)[(row // 16 * (k // group) + i // group) * 16 + lane]
            store_f32x16(values, load(w + i * 16 * width))
            y[i] = f32_pointer(values)[lane] * scale

    return float_get_rows
