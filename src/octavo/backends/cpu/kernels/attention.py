"""Attention over the paged KV cache: softmax page by page, with running maximum and sum (Milakov, arXiv 1805.02867).

A page is 64 positions. Keys of a head lie as [D, 64], so 16 positions are a vector and no sum crosses lanes; values as
[64, Hkv, D], so 16 of D are a vector. Both are float16. n queries share each page that is read: with one token a
sequence they are the heads that share a key head; with many, 8 tokens of one head.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import float32, njit

from octavo.backends.cpu.program import kernel
from octavo.backends.cpu.simd import (
    arg,
    arg_f32,
    exp,
    f32_pointer,
    fma_splat_strided,
    i32_pointer,
    load_block,
    load_f16x16,
    load_f32x16,
    max_lanes,
    maximum,
    mul,
    scale_block,
    splat,
    stack,
    store_block,
    store_f32x16,
    sub,
    sum_lanes,
    zeros,
)  # fmt: skip

PAGE = 64
TILE = 8  # tokens of a tile where a sequence has many


@cache
def decode_kernel(group: int, dim: int) -> Any:
    """One task for each token and key head. `group` query heads share a key head; `dim` is the size of a head.

    Arguments: out, q, q stride, keys, values, positions, starts, pages, width of pages, sequences, key heads, scale,
    tokens.
    """
    attend = _attend(group, dim)

    def attention_decode(args, task):
        kv_heads = arg(args, 10)
        token, head = task // kv_heads, task % kv_heads
        starts = i32_pointer(arg(args, 6))
        sequence = 0
        while starts[sequence + 1] <= token:
            sequence += 1
        at = head * group * dim * 4
        width = kv_heads * group * dim * 4
        attend(
            arg(args, 0) + token * width + at, dim * 4, arg(args, 1) + token * arg(args, 2) + at, dim * 4, args,
            arg(args, 7) + sequence * arg(args, 8) * 4, head, i32_pointer(arg(args, 5))[token], 0, group,
        )  # fmt: skip

    return kernel(attention_decode)


@cache
def prefill_kernel(group: int, dim: int) -> Any:
    """One task for each tile of 8 tokens and query head. Arguments as for `decode_kernel`."""
    attend = _attend(TILE, dim)
    tile = TILE

    def attention_prefill(args, task):
        heads = arg(args, 10) * group
        head = task % heads
        first = task // heads * tile
        stop = min(first + tile, arg(args, 12))
        starts, positions = i32_pointer(arg(args, 6)), i32_pointer(arg(args, 5))
        width = heads * dim * 4
        for sequence in range(arg(args, 9)):
            begin, end = max(first, starts[sequence]), min(stop, starts[sequence + 1])
            if begin < end:
                attend(
                    arg(args, 0) + begin * width + head * dim * 4, width,
                    arg(args, 1) + begin * arg(args, 2) + head * dim * 4, arg(args, 2), args,
                    arg(args, 7) + sequence * arg(args, 8) * 4, head // group, positions[begin], 1, end - begin,
                )  # fmt: skip

    return kernel(attention_prefill)


def _attend(n: int, dim: int) -> Any:
    """A function that attends with up to n queries, the i-th at position p + i * step, and writes their outputs."""
    page_floats, score_bytes, out_bytes, state_bytes = PAGE, n * PAGE * 4, n * dim * 4, n * 16
    chunks = dim // 16

    @njit(error_model="numpy")
    def scores_of(scores, q, q_stride, keys):
        """scores [n, 64] = q [n, D] times a page of keys [D, 64]."""
        for part in range(2):
            low, high = zeros(n), zeros(n)
            at = keys + part * 64
            for d in range(dim):
                low = fma_splat_strided(low, load_f16x16(at), q + d * 4, q_stride)
                high = fma_splat_strided(high, load_f16x16(at + 32), q + d * 4, q_stride)
                at += 128
            store_block(scores + part * 128, 256, low)
            store_block(scores + part * 128 + 64, 256, high)

    @njit(error_model="numpy")
    def weigh(scores, seen, scale, state):
        """Scores of one query to weights e^(score - maximum), 0 past `seen`; state: maximum, sum, factor of before."""
        xs = f32_pointer(scores)
        for i in range(max(0, seen), page_floats):
            xs[i] = -math.inf
        wide = splat(scale)
        a, b = mul(load_f32x16(scores), wide), mul(load_f32x16(scores + 64), wide)
        c, d = mul(load_f32x16(scores + 128), wide), mul(load_f32x16(scores + 192), wide)
        top = max(state[0], max_lanes(maximum(maximum(a, b), maximum(c, d))))
        if top == -math.inf:
            return
        wide = splat(top)
        total = float32(0.0)
        a, b, c, d = exp(sub(a, wide)), exp(sub(b, wide)), exp(sub(c, wide)), exp(sub(d, wide))
        store_f32x16(scores, a)
        store_f32x16(scores + 64, b)
        store_f32x16(scores + 128, c)
        store_f32x16(scores + 192, d)
        total = sum_lanes(a) + sum_lanes(b) + sum_lanes(c) + sum_lanes(d)
        factor = math.exp(state[0] - top)
        state[0] = top
        state[1] = state[1] * factor + total
        state[2] = factor

    @njit(error_model="numpy")
    def add_values(out, scores, states, values, stride, rows):
        """out [n, D] = out * factor + weights [n, rows] times values [rows, D]."""
        for chunk in range(chunks):
            acc = scale_block(load_block(out + chunk * 64, dim * 4, n), states + 8, 16)
            at = values + chunk * 32
            for row in range(rows):
                acc = fma_splat_strided(acc, load_f16x16(at), scores + row * 4, 256)
                at += stride
            store_block(out + chunk * 64, dim * 4, acc)

    def attend(out, out_stride, q, q_stride, args, pages, kv_head, position, step, count):
        kv_heads, scale = arg(args, 10), arg_f32(args, 11)
        scores, sums, states = stack(score_bytes), stack(out_bytes), stack(state_bytes)
        state = f32_pointer(states)
        totals = f32_pointer(sums)
        for i in range(n * dim):
            totals[i] = 0.0
        for i in range(n):
            state[4 * i], state[4 * i + 1], state[4 * i + 2] = -math.inf, 0.0, 1.0
        table = i32_pointer(pages)
        last = position + (count - 1) * step
        stride = kv_heads * dim * 2
        # Queries past `count` repeat the last one, so that every address is one that may be read.
        queries = stack(out_bytes)
        for i in range(n):
            source = f32_pointer(q + min(i, count - 1) * q_stride)
            for d in range(dim):
                f32_pointer(queries)[i * dim + d] = source[d]
        for page in range(last // page_floats + 1):
            row = table[page] * page_floats
            keys = arg(args, 3) + (row * kv_heads + kv_head * page_floats) * dim * 2
            scores_of(scores, queries, dim * 4, keys)
            for i in range(n):
                seen = position + min(i, count - 1) * step + 1 - page * page_floats
                weigh(scores + i * 256, min(seen, page_floats), scale, f32_pointer(states + 16 * i))
            rows = min(last + 1 - page * page_floats, page_floats)
            add_values(sums, scores, states, arg(args, 4) + row * stride + kv_head * dim * 2, stride, rows)
        for i in range(count):
            y = f32_pointer(out + i * out_stride)
            for d in range(dim):
                y[d] = totals[i * dim + d] / state[4 * i + 1]

    return njit(error_model="numpy")(attend)
