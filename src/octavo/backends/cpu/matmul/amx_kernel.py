# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of many tokens in bfloat16 by matrix tiles (AMX), of float weights (f16, bf16, e4m3) and of blocks.

Algorithm: GotoBLAS's blocking around tile products of 16 tokens x 16 rows x 32 values; a float16 is the sum of two
    bfloat16, and its product that of three (Henry, Tang and Heinecke, arXiv 1904.06376).
Tile:
    task    up to PANELS x 16 rows, all tokens
    slice   STEPS x 32 values of each panel, as bfloat16, unpacked once for 512 tokens
    sums    [16 tokens, 16 rows] float32; `tile_sweep` says how tiles come past each other
Bound: instructions: 88% of what tiles reach with Q4_K (docs/log.md, "Matrix tiles are fetched to the L2, not to the
    L1").
Tried: docs/log.md: "Int8 tiles that are read out for each block's scale are no faster than VNNI"; "bfloat16 tiles do
    not pay with few tokens".
Twin: `octavo.backends.reference.ops.mul_mat`

Tokens are as `tokens_kernel` makes them, the last tile filled up with what is not looked at. A row of sums depends on
its own token alone.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.float_kernel import WIDTH, Kind, pair_function
from octavo.backends.cpu.matmul.kernel import bias_of_group, scale_of_group, super_minima, super_scales
from octavo.backends.cpu.matmul.quantize_kernel import BLOCK_BYTES
from octavo.backends.cpu.matmul.tasks import finish
from octavo.backends.cpu.matmul.tile_sweep import (
    PANEL_SUMS,
    PANELS,
    STEPS,
    TILE_BYTES,
    TILES,
    N,
    sweep,
)
from octavo.backends.cpu.weights.decode import unpack_codes
from octavo.backends.cpu.weights.layout import ROWS, STEP, TiledLayout
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    amx,
    f32_pointer,
    fma_blocks,
    load_bf16x16,
    load_block,
    load_f16x16,
    load_f32x16,
    load_finite_e4m3x16,
    load_s8x16,
    mul,
    prefetch,
    raise_codes,
    splat,
    stack,
    store_codes,
    sub,
    zeros,
)
from octavo.jit.simd.bf16 import (
    cut_bf16,
    plain_nan,
    raise_bf16,
    store_bf16_pairs,
    store_bf16x32,
    store_bf16x32_parts,
    store_code_pairs,
)
from octavo.jit.simd.lanes import F32_KIND, load_lanes

AHEAD = 4352
"""How far ahead of the block in work weights are fetched."""

PRODUCT = record("weights rows k panels", "x y y_stride tokens", "terms term_count", "table scales")
"""As `tasks.PRODUCT`, but for
x       tiles of `tokens` tokens in bfloat16, as `tokens_kernel` makes them
panels  panels of 16 rows that a task makes, up to PANELS
"""


def parts_of(kind: Kind) -> int:
    """How many bfloat16 make a value: of a weight, and of what it is multiplied with."""
    return 2 if kind == "f16" else 1


@kernels(PRODUCT, long=True)
def float_product_kernel(kind: Kind, group: int = 0) -> Any:
    """y f32 [tokens, rows] = x W^T + terms for float weights, as `float_mul_mat_kernel` takes them; task: panels.

    Scales of groups are multiplied with weights, and so rounded to bfloat16; those of rows with sums.
    """
    return _product(_unpack_floats(kind, group), parts_of(kind), scaled=kind == "e4m3" and not group)


@kernels(PRODUCT, long=True)
def block_product_kernel(layout: TiledLayout) -> Any:
    """The same for blocks of a `TiledLayout`, each value rounded to bfloat16."""
    return _product(_unpack_blocks(layout), 1, scaled=False)


def _product(unpack: Any, parts: int, *, scaled: bool) -> Any:
    """The kernel; `unpack` is a function (arguments, panel, first step, steps, memory) that makes tiles of weights."""
    step_bytes, n, tile_bytes, most_steps, row_bytes = parts * TILE_BYTES, N, TILE_BYTES, STEPS, 4 * ROWS
    panel_bytes, most = STEPS * parts * TILE_BYTES, TILES
    room, panel_sums, sums_bytes = PANELS * STEPS * parts * TILE_BYTES, PANEL_SUMS, PANELS * PANEL_SUMS
    add_slice, end, end_one = sweep(amx.add_bf16, parts), inner(finish(N), N), inner(finish(1), 1)

    def product(a, task):
        amx.configure(64)
        task *= a.panels
        panels, steps = min(a.panels, (a.rows + 15) // 16 - task), (a.k + 31) // 32
        packed, sums, x_stride, all_tiles = stack(room), stack(sums_bytes), steps * step_bytes, (a.tokens + n - 1) // n
        for first in range(0, all_tiles, most):
            tiles, x = min(all_tiles - first, most), a.x + first * x_stride
            for start in range(0, steps, most_steps):
                here = min(steps - start, most_steps)
                for panel in range(panels):
                    unpack(a, task + panel, start, here, packed + panel * panel_bytes)
                add_slice(
                    sums, x + start * step_bytes, x_stride, tiles, packed, panel_bytes, panels, here, start == 0
                )
            for tile in range(tiles):  # a token's panels side by side: each token is in another page
                for panel in range(panels):
                    at, token = sums + panel * panel_sums + tile * tile_bytes, (first + tile) * n
                    scales = a.scales + (task + panel) * row_bytes
                    if token + n <= a.tokens:
                        acc = load_block(at, row_bytes, n)  # n x [16]
                        if scaled:
                            acc = fma_blocks(zeros(n), acc, load_f32x16(scales))
                        end(a, task + panel, token, acc)
                    else:
                        for t in range(a.tokens - token):
                            last = load_block(at + t * row_bytes, row_bytes, 1)
                            if scaled:
                                last = fma_blocks(zeros(1), last, load_f32x16(scales))
                            end_one(a, task + panel, token + t, last)
        amx.release()

    return product


def _unpack_floats(kind: Kind, group: int) -> Any:
    """A function (arguments, panel, first step, steps, memory) that makes tiles of floats; what is past K is 0."""
    width, tile_bytes, ahead, split, grouped = WIDTH[kind], TILE_BYTES, AHEAD, kind == "f16", group > 0
    load = {"f16": load_f16x16, "bf16": load_bf16x16, "e4m3": load_finite_e4m3x16}[kind]
    both_of, chunk, line_bytes = pair_function(kind), parts_of(kind) * TILE_BYTES, 32 * WIDTH[kind]

    def store(memory, even, odd):
        if split:
            high, higher = cut_bf16(even), cut_bf16(odd)
            store_bf16_pairs(memory, high, higher)
            store_bf16_pairs(memory + tile_bytes, sub(even, high), sub(odd, higher))
        else:
            store_bf16_pairs(memory, even, odd)

    store = inner(store, kind, inline="always")

    def unpack(a, panel, start, steps, memory):
        w, none = a.weights + (panel * a.k + start * 32) * 16 * width, splat(0.0)
        for step in range(start, start + steps):
            scale = none
            if grouped:
                scale = load_f32x16(a.scales + (panel * (a.k // group) + step * 32 // group) * 64)
            for pair in range(min(16, (a.k - step * 32) // 2)):
                prefetch(w + pair * line_bytes + ahead)
                even, odd = both_of(w + pair * line_bytes)
                if grouped:
                    even, odd = raise_bf16(mul(even, scale)), raise_bf16(mul(odd, scale))
                store(memory + pair * 64, even, odd)
            for k in range(max(step * 32, a.k // 2 * 2), step * 32 + 32, 2):
                at = memory + (k - step * 32) * 32
                if k < a.k:
                    store(at, load(w + (k - step * 32) * 16 * width), none)
                else:
                    store(at, none, none)
            w += 16 * line_bytes
            memory += chunk

    return inner(unpack, kind, group)


def _unpack_blocks(layout: TiledLayout) -> Any:
    """A function (arguments, panel, first step, steps, memory) that makes tiles of blocks: code * scale - minimum."""
    blocks, super_bytes, block_at = layout.super // STEP, layout.super_bytes, layout.head_bytes
    block_bytes, groups, signed = layout.block_bytes, layout.groups, int(layout.offset != 0)
    codes_of, scale_of, bias_of = unpack_codes(layout), super_scales(layout), super_minima(layout)
    scale_in, bias_in, tile_bytes = scale_of_group(layout), bias_of_group(layout), TILE_BYTES
    ahead, code_bytes, half, raised = AHEAD, ROWS * STEP, ROWS * STEP // 2, layout.offset != 0

    def unpack(a, panel, start, steps, memory):
        codes = stack(code_bytes)
        supers = a.k // (blocks * 32)
        for step in range(start, start + steps):
            w = a.weights + (panel * supers + step // blocks) * super_bytes
            d, less, block = scale_of(w, 0), bias_of(w, 0), w + block_at + step % blocks * block_bytes
            for line in range(0, block_bytes, 64):
                prefetch(block + ahead + line)
            found = codes_of(block, a.table)
            store_codes(codes, raise_codes(found, 128) if raised else found)
            for group in range(groups):
                scale, bias = plain_nan(scale_in(w, block, d, group)), plain_nan(bias_in(w, block, less, group))
                for at in range(group * half, half + half if groups == 1 else (group + 1) * half, 64):
                    store_code_pairs(memory + 2 * at, codes + at, scale, bias, signed)
            memory += tile_bytes

    return inner(unpack, layout)


TOKENS_BF16 = record("out x x_stride", "tokens k chunks")
"""out          tiles of 16 tokens, each of K / 32 times `parts` times 16 tokens x 32 values, bfloat16
x, x_stride  float32 [tokens, k], and bytes from a token's values to the next one's; or blocks as `quantize_kernel`
             writes them, and bytes of a token
chunks       pieces of a tile, which are tasks
"""


@kernels(TOKENS_BF16)
def tokens_kernel(parts: int) -> Any:
    """Task i rounds piece i % chunks of tile i // chunks to bfloat16; of two parts, each is cut off."""
    n, tile_bytes, split, chunk_bytes, kind = N, TILE_BYTES, parts == 2, parts * TILE_BYTES, F32_KIND

    def round_tokens(a, task):
        steps, tile = (a.k + 31) // 32, task // a.chunks
        start, stop = task % a.chunks * steps // a.chunks, (task % a.chunks + 1) * steps // a.chunks
        for t in range(min(n, a.tokens - tile * n)):
            x, out = a.x + (tile * n + t) * a.x_stride, a.out + tile * steps * chunk_bytes + t * 64
            for step in range(start, stop):
                at = x + step * 128
                left, to = a.k - step * 32, out + step * chunk_bytes
                low, high = load_lanes(at, left, kind), load_lanes(at + 64, left - 16, kind)
                if split:
                    store_bf16x32_parts(to, to + tile_bytes, low, high)
                else:
                    store_bf16x32(to, low, high)

    return round_tokens


@kernels(TOKENS_BF16)
def block_tokens_kernel() -> Any:
    """Task i makes the same of blocks of 8 bits: of codes times their scales."""
    most, block_bytes, chunk_bytes = N, BLOCK_BYTES, TILE_BYTES

    def round_blocks(a, task):
        steps, tile = a.k // 32, task // a.chunks
        start, stop = task % a.chunks * steps // a.chunks, (task % a.chunks + 1) * steps // a.chunks
        first, left, n = tile * most, min(most, a.tokens - tile * most), most
        while left > 0:
            if left >= n:
                out = a.out + tile * steps * chunk_bytes + first % most * 64
                for step in range(start, stop):
                    block, to = a.x + first * a.x_stride + step * n * block_bytes, out + step * chunk_bytes
                    for t in range(n):
                        d, codes = splat(f32_pointer(block + n * 32)[t]), block + t * 32
                        store_bf16x32(to + t * 64, mul(load_s8x16(codes), d), mul(load_s8x16(codes + 16), d))
                first, left = first + n, left - n
            n //= 2

    return round_blocks
