# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Attention of prompts over an f16 cache by matrix tiles (AMX), page by page.

Algorithm: FlashAttention's loop (arXiv 2205.14135) with tile products; a number is the sum of two bfloat16, as float16
    is exactly, and its product that of three (Henry, Tang and Heinecke, arXiv 1904.06376).
Tile:
    task     tokens x the query heads that share a key head: 128 rows or a few more, q as bfloat16 in the L2
    page     64 positions | 64 | ...   keys and values as bfloat16, made once for all rows
    scores   [rows, 64] float32 -> weights e^(score - maximum), as bfloat16
    sums     [rows, D] float32, in memory: times what the maximum has grown by, += weights * values
Bound: instructions of the soft-max, of which a page's take as long as its tile products. Not measured.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.attention`

What is rounded off is 2^-17 of a number. A row depends on no other one.
"""

from __future__ import annotations

import math
from typing import Any

from numba import float32

from octavo.backends.cpu.attention.cache_layout import head_bytes, value_columns
from octavo.backends.cpu.attention.kernel import ATTENTION, behind, finish_function, mask_function
from octavo.backends.cpu.matmul.tile_sweep import TILE_BYTES, sweep
from octavo.graph.node import PAGE_SIZE
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add,
    amx,
    exp,
    f32_pointer,
    i32_pointer,
    load_f16x16,
    load_f32x16,
    max_lanes,
    maximum,
    mul,
    prefetch_to_l2,
    splat,
    stack,
    store_f32x16,
    sub,
    sum_lanes,
)
from octavo.jit.simd.bf16 import cut_bf16, store_bf16_pairs, store_bf16x32_parts

ROWS = 128
"""Rows of queries of a task, where heads that share a key head are few enough."""

STEP_BYTES = 2 * TILE_BYTES
"""Bytes of a tile of two parts."""


def tile_tokens(group: int) -> int:
    """Tokens of a task: whole tiles for each of `group` heads."""
    return max(1, ROWS // 16 // group) * 16


@kernels(ATTENTION, long=True)
def amx_prefill_kernel(group: int, dim: int, windowed: bool, capped: bool, reaching: bool, sloped: bool) -> Any:
    """One task for each tile of `tile_tokens` tokens and key head, the last tokens first, as they see most.

    `dim` is a multiple of 32.
    """
    tokens, page_size, piece = tile_tokens(group), PAGE_SIZE, head_bytes("f16", dim)
    row_bytes, steps = dim * 4, dim // 32
    panels, q_stride, most = dim // 16, steps * STEP_BYTES, group * tile_tokens(group)
    q_bytes, page_bytes, weight_bytes, state_bytes = most * row_bytes, 64 * row_bytes, most * 256, most * 16
    to_scores = sweep(amx.add_bf16, 2, (16 * 256, 64, 256))
    to_sums = sweep(amx.add_bf16, 2, (16 * row_bytes, 64, row_bytes))
    make_keys, make_values, split_row = _keys(dim), _values(dim), inner(_split_row)
    weigh, finish = _weigh(windowed, capped), finish_function("f16", tile_tokens(group), dim, 0)
    grow, weight_stride = inner(_grow), 2 * STEP_BYTES

    def attend(a, pages, head, begin, count, position, final, sums, states):
        scale, window, cap = a.scale, (a.window if windowed else 0), (a.cap if capped else float32(0.0))
        queries, page_tiles = stack(q_bytes), stack(page_bytes)
        scores, weights, table = stack(weight_bytes), stack(weight_bytes), i32_pointer(pages)
        each = (count + 15) // 16 * 16  # rows of a head; those past `count` repeat the last one
        rows = group * each
        for row in range(rows):
            state, total = f32_pointer(states + 16 * row), f32_pointer(sums + row * row_bytes)
            state[0], state[1], state[2] = -math.inf, 0.0, 1.0
            for d in range(dim):
                total[d] = 0.0
            token = begin + min(row % each, count - 1)
            q = a.q + token * a.q_stride + (head * group + row // each) * row_bytes
            split_row(queries + row // 16 * q_stride + row % 16 * 64, q, steps)
        last = position + count - 1
        if reaching:
            last = min(last + a.reach, final)
        first_page, last_page = 0, last // page_size
        if windowed:
            first_page = max(0, position + 1 - behind(position, a.window, a.chunked)) // page_size
        for page in range(first_page, last_page + 1):
            place = (table[page] * a.kv_heads + head) * piece
            after = (table[min(page + 1, last_page)] * a.kv_heads + head) * piece
            there = min(last + 1 - page * page_size, page_size)
            make_keys(page_tiles, a.keys + place, a.values + place)
            to_scores(scores, queries, q_stride, rows // 16, page_tiles, q_stride, 4, steps, True)
            for row in range(rows):
                here = position + min(row % each, count - 1)
                seen, state = here + 1 - page * page_size, f32_pointer(states + 16 * row)
                hidden = seen - (behind(here, window, a.chunked) if windowed else 0)
                if sloped:
                    slope = float32(f32_pointer(a.slopes)[head * group + row // each] / scale)
                    xs, center = f32_pointer(scores + row * 256), here - page * page_size
                    for j in range(page_size):
                        xs[j] -= slope * float32(abs(j - center))
                if reaching:
                    seen = min(seen + a.reach, final + 1 - page * page_size)
                to = weights + row // 16 * weight_stride + row % 16 * 64
                weigh(to, scores + row * 256, hidden, min(seen, page_size), scale, cap, state)
                if state[2] != 1.0:
                    grow(sums + row * row_bytes, state[2], panels)
            make_values(page_tiles, a.values + place, a.keys + after, there)
            to_sums(sums, weights, weight_stride, rows // 16, page_tiles, weight_stride, panels, 2, False)

    attend = inner(attend, group, dim, windowed, capped, reaching, sloped, inline="always")

    def attention_prefill(a, task):
        starts, positions = i32_pointer(a.starts), i32_pointer(a.positions)
        head, tile = task % a.kv_heads, (a.tokens - starts[0] - 1) // tokens - task // a.kv_heads
        first = starts[0] + tile * tokens
        stop, width = min(first + tokens, a.tokens), a.heads * row_bytes
        sums, states = stack(q_bytes), stack(state_bytes)
        amx.configure(64)
        for sequence in range(a.sequences):
            begin, end = max(first, starts[sequence]), min(stop, starts[sequence + 1])
            if begin < end:
                final = positions[starts[sequence + 1] - 1] if reaching else 0
                pages = a.pages + sequence * a.pages_width * 4
                attend(a, pages, head, begin, end - begin, positions[begin], final, sums, states)
                each = (end - begin + 15) // 16 * 16
                for i in range(group):
                    out = a.out + begin * width + (head * group + i) * row_bytes
                    at, state = sums + i * each * row_bytes, states + i * each * 16
                    finish(out, width, at, state, end - begin, a.sinks, head * group + i, float32(1.0))
        amx.release()

    return attention_prefill


def _split_row(to, x, steps):
    """`steps` times 32 floats as a row of tiles of bfloat16, and of tiles of what rounding left."""
    for step in range(steps):
        at = to + step * 2048
        store_bf16x32_parts(at, at + 1024, load_f32x16(x + step * 128), load_f32x16(x + step * 128 + 64))


def _weigh(windowed: bool, capped: bool) -> Any:
    """A function that makes weights of a query's scores [64], as tiles of bfloat16 take them.

    Its arguments: where the weights go, scores, hidden, seen, scale, cap, state.
    """
    mask = mask_function(windowed, capped)

    def weigh(to, scores, hidden, seen, scale, cap, state):
        wide = splat(mask(scores, hidden, seen, scale, cap))
        a, b = mul(load_f32x16(scores), wide), mul(load_f32x16(scores + 64), wide)  # [16] each
        c, d = mul(load_f32x16(scores + 128), wide), mul(load_f32x16(scores + 192), wide)
        before = state[0]
        top = max(before, max_lanes(maximum(maximum(a, b), maximum(c, d))))
        state[0], state[2] = top, float32(1.0)
        if top == -math.inf:  # a window hides all
            top = float32(0.0)
        wide = splat(top)
        a, b, c, d = exp(sub(a, wide)), exp(sub(b, wide)), exp(sub(c, wide)), exp(sub(d, wide))
        store_bf16x32_parts(to, to + 1024, a, b)
        store_bf16x32_parts(to + 2048, to + 3072, c, d)
        if top != before:
            state[2] = math.exp(before - top)
        state[1] = state[1] * state[2] + sum_lanes(add(add(a, b), add(c, d)))

    return inner(weigh, windowed, capped)


def _grow(sums, factor, vectors):
    wide = splat(factor)
    for i in range(vectors):
        store_f32x16(sums + 64 * i, mul(load_f32x16(sums + 64 * i), wide))


def _store_pair(to, even, odd):
    """float16 numbers of two k of 16 columns as pairs of bfloat16, and what cutting left of them in the tile after."""
    high, higher = cut_bf16(even), cut_bf16(odd)
    store_bf16_pairs(to, high, higher)
    store_bf16_pairs(to + 1024, sub(even, high), sub(odd, higher))


def _keys(dim: int) -> Any:
    """A function (tiles, keys of a page, what to fetch) that makes 4 panels of 16 positions, D / 32 tiles of each."""
    panel_bytes, store_pair = dim // 32 * STEP_BYTES, inner(_store_pair)

    def make(to, keys, ahead):
        for pair in range(dim // 2):
            at = to + pair // 16 * 2048 + pair % 16 * 64
            for panel in range(4):
                prefetch_to_l2(ahead + pair * 256 + panel * 64)
                x = keys + pair * 256 + panel * 32
                store_pair(at + panel * panel_bytes, load_f16x16(x), load_f16x16(x + 128))

    return inner(make, dim)


def _values(dim: int) -> Any:
    """A function (tiles, values of a page, what to fetch, rows) that makes D / 16 panels, of 64 positions in 2 tiles.

    Positions from `rows` on are 0: what lies there may be no number.
    """
    columns, store_pair = value_columns(dim), inner(_store_pair)
    pitch, wide = columns * 2, columns // 16

    def make(to, values, ahead, rows):
        none = splat(0.0)
        for panel in range(dim // 16):
            x = values + panel // wide * (64 * pitch) + panel % wide * 32
            for pair in range(32):
                prefetch_to_l2(ahead + panel * 2048 + pair * 64)
                at, here = to + panel * 4096 + pair // 16 * 2048 + pair % 16 * 64, x + 2 * pair * pitch
                if 2 * pair + 1 < rows:
                    store_pair(at, load_f16x16(here), load_f16x16(here + pitch))
                elif 2 * pair < rows:
                    store_pair(at, load_f16x16(here), none)
                else:
                    store_pair(at, none, none)

    return inner(make, dim)
