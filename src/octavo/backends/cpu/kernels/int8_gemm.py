"""Products of int8 activations with weights of 8 or 4 bits, integer sums over all of K, and everything after them.

Weights [N, K] are taken as they lie. With many tokens, a task turns 16 rows into a panel, in memory of its own, and
multiplies all tiles of tokens with it; with few, rows are read once, from front to back, and lanes added at the end.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from octavo.backends.cpu.kernels.math import gated, silu
from octavo.jit import host
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add,
    arg,
    f32_pointer,
    fma,
    i32_pointer,
    load_f32x16,
    maximum,
    mul,
    prefetch,
    splat,
    stack,
    store_block,
)
from octavo.jit.simd.integers import (
    INT8,
    STEP,
    copy_and_sum,
    dot_panel,
    dot_row,
    load_sums,
    pack_panel,
    store_row_sums,
    sums_to_f32,
    zero_sums,
)
from octavo.jit.simd.lanes import BF16_KIND, F16_KIND, F32_KIND, load_lanes, store_lanes

WIDE, NARROW = (16, 4) if host.level() == "avx512vnni" else (4, 4)
"""Tokens of a tile: as many as the registers hold sums for; and of the tiles for the rest."""


def tiles_of(tokens: int) -> tuple[int, int]:
    """How many wide and narrow tiles hold so many tokens."""
    return tokens // WIDE, -(-(tokens % WIDE) // NARROW)


def parts_of(tokens: int) -> list[tuple[int, int]]:
    """The first token and the count of each call of `few_kernel` that so many tokens take."""
    sizes = [4] * (tokens // 4) + [2] * (tokens % 4 // 2) + [1] * (tokens % 2)
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


SLICE = 4096
"""Values of K in a panel: 64 kB, which the second cache holds."""

AHEAD = 256
"""Bytes from what is multiplied to what is fetched, where rows of 4 bits are read once. Rows of 8 bits are read faster
by the CPU's own prefetching alone, which fetching further ahead disturbs too."""

RELU, GELU, SILU = 1, 2, 3

EPILOGUE = 7
"""The first of a kernel's arguments for what comes after the sums."""


@kernels
def tiles_kernel() -> Any:
    """Task i copies tile i of `tile` tokens to [K / 64, tile, 64], and writes -offset * sum(x) of each token.

    Arguments: out, sums, x, x stride, tokens, K / 64, tile, offset. Tokens that there are none of are zeros.
    """

    def tiles(args, task):
        chunks, tile, offset = arg(args, 5), arg(args, 6), arg(args, 7)
        out = arg(args, 0) + task * chunks * tile * 64
        zeros = stack(64)
        for i in range(16):
            i32_pointer(zeros)[i] = 0
        for t in range(tile):
            token, total = task * tile + t, 0
            there = token < arg(args, 4)
            x = arg(args, 2) + token * arg(args, 3) if there else zeros
            for chunk in range(chunks):
                total += copy_and_sum(out + (chunk * tile + t) * 64, x)
                if there:
                    x += 64
            if there:
                i32_pointer(arg(args, 1))[token] = -offset * total

    return tiles


@kernels
def begins_kernel() -> Any:
    """Task i writes -offset * sum(x) of token i. Arguments: sums, x, x stride, K / 64, offset."""

    def begins(args, task):
        x, copy, total = arg(args, 1) + task * arg(args, 2), stack(64), 0
        for _chunk in range(arg(args, 3)):
            total += copy_and_sum(copy, x)
            x += 64
        i32_pointer(arg(args, 0))[task] = -arg(args, 4) * total

    return begins


@kernels
def few_kernel(kind: int, n: int) -> Any:
    """Task i makes 16 columns of y, from column 16 i on, for n tokens.

    Arguments: w, w stride, scales of groups, their stride, bytes of a row, x, x stride; then those of `epilogue`.
    """
    finish, sums_bytes, x_step = epilogue(), n * 64, 64 if kind == INT8 else 128
    step, ahead, fetches = STEP, AHEAD, kind != INT8

    def few(args, task):
        columns = min(arg(args, 8) - task * 16, 16)
        x_stride, sums = arg(args, 6), stack(sums_bytes)
        for r in range(columns):
            w, scales = arg(args, 0) + (task * 16 + r) * arg(args, 1), arg(args, 2) + (task * 16 + r) * arg(args, 3)
            x, acc = arg(args, 5), zero_sums(n)
            for _step in range(arg(args, 4) // step):
                if fetches:
                    prefetch(w + ahead)
                acc = dot_row(acc, w, scales, x, x_stride, kind)
                w, scales, x = w + step, scales + 2, x + x_step
            store_row_sums(sums + 4 * r, acc)
        finish(args, task, sums, 0, n)

    return few


@kernels
def many_kernel(kind: int) -> Any:
    """Task i makes 16 columns of y, from column 16 i on, for all tokens.

    Arguments: w, w stride, scales of groups, their stride, bytes of a row, x in tiles as `tiles_kernel` makes them,
    memory for sums where K is more than a slice; then those of `epilogue`, and how many wide and narrow tiles.
    """
    finish, wide, narrow = epilogue(), WIDE, NARROW
    wide_tile, narrow_tile = tile_sums(wide), tile_sums(narrow)
    step, panels = STEP, 1 if kind == INT8 else 2
    panel_bytes, slice_bytes = 1024 * panels, SLICE // panels
    memory_bytes, sums_bytes = SLICE * 16, wide * 64

    def many(args, task):
        columns = min(arg(args, 8) - task * 16, 16)
        stride, scales_stride, row_bytes = arg(args, 1), arg(args, 3), arg(args, 4)
        w = arg(args, 0) + task * 16 * stride
        scales = arg(args, 2) + task * 16 * scales_stride
        wides, narrows = arg(args, 22), arg(args, 23)
        tokens = wides * wide + narrows * narrow
        parts = arg(args, 6) + task * tokens * 64
        panel, sums = stack(memory_bytes), stack(sums_bytes)
        chunks = row_bytes // step * panels
        start = 0
        while start < row_bytes:
            stop = min(start + slice_bytes, row_bytes)
            for at in range(start, stop, step):
                to = panel + (at - start) // step * panel_bytes
                pack_panel(to, w + at, stride, columns - 1, scales + at // step * 2, scales_stride, kind)
            count, done = (stop - start) // step * panels, start // step * panels
            first, last = start == 0, stop == row_bytes
            x = arg(args, 5)
            for tile in range(wides):
                at = sums if last and first else parts + tile * wide * 64
                wide_tile(at, panel, x + done * wide * 64, count, first)
                x += chunks * wide * 64
                if last:
                    finish(args, task, at, tile * wide, wide)
            for tile in range(narrows):
                token = wides * wide + tile * narrow
                at = sums if last and first else parts + token * 64
                narrow_tile(at, panel, x + done * narrow * 64, count, first)
                x += chunks * narrow * 64
                if last:
                    finish(args, task, at, token, narrow)
            start = stop

    return many


def tile_sums(n: int) -> Any:
    """A function that adds to n x 16 sums the products of a panel and a tile of n tokens."""

    def tile(sums, panel, x, chunks, begins):
        acc = zero_sums(n) if begins else load_sums(sums, n)
        for _chunk in range(chunks):
            acc = dot_panel(acc, panel, x)
            panel, x = panel + 1024, x + n * 64
        store_block(sums, 64, acc)

    return inner(tile, n)


def epilogue() -> Any:
    """A function (args, task, sums, first token, tokens) that makes results of sums and stores them.

    Arguments, from EPILOGUE on: tokens, columns, begins, zeros, sums of columns, scales of tokens, scales of columns,
    bias, activation, residual, its stride, y, its stride, and the kinds of the residual and of y. What belongs to
    columns is filled up to a multiple of 16.
    """
    at_args = EPILOGUE * 8
    relu, gelu, swish = RELU, GELU, SILU

    def finish(args, task, sums, first, count):
        e = args + at_args
        columns = min(arg(e, 1) - task * 16, 16)
        scale_b, bias = load_f32x16(arg(e, 6) + task * 64), load_f32x16(arg(e, 7) + task * 64)
        activation = arg(e, 8)
        for i in range(min(count, arg(e, 0) - first)):
            token = first + i
            begin, zero = i32_pointer(arg(e, 2))[token], i32_pointer(arg(e, 3))[token]
            v = sums_to_f32(sums + i * 64, begin, zero, arg(e, 4) + task * 64)
            v = add(mul(mul(v, splat(f32_pointer(arg(e, 5))[token])), scale_b), bias)
            if activation == relu:
                v = maximum(splat(0.0), v)
            elif activation == gelu:
                z = mul(v, fma(mul(v, v), splat(0.0713548162726), splat(1.5957691216)))
                v = gated(v, z)
            elif activation == swish:
                v = silu(v)
            if arg(e, 9) != 0:
                v = add(v, _load(arg(e, 9) + token * arg(e, 10), task * 16, columns, arg(e, 13)))
            _store(arg(e, 11) + token * arg(e, 12), task * 16, columns, v, arg(e, 14))

    return inner(finish)


@njit(error_model="numpy")
def _load(row, column, lanes, kind):
    """Up to 16 floats of a row, from a column on."""
    if kind == F32_KIND:
        return load_lanes(row + column * 4, lanes, F32_KIND)
    if kind == F16_KIND:
        return load_lanes(row + column * 2, lanes, F16_KIND)
    return load_lanes(row + column * 2, lanes, BF16_KIND)


@njit(error_model="numpy")
def _store(row, column, lanes, value, kind):
    if kind == F32_KIND:
        store_lanes(row + column * 4, lanes, value, F32_KIND)
    elif kind == F16_KIND:
        store_lanes(row + column * 2, lanes, value, F16_KIND)
    else:
        store_lanes(row + column * 2, lanes, value, BF16_KIND)
