# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of int8 activations with weights of 8 or 4 bits: integer sums over all of K, then `epilogue`.

Algorithm: GotoBLAS's blocking with integer dot products (VNNI) for GEMM; rows read once, front to back, for GEMV.
Tile:
    gemm     16 rows packed to a panel [chunks, 16, 64] of the task's own, times tiles of WIDE tokens; acc [n, 16] int32
    matvec   a row as it lies | 64 | 64 | ..., n tokens x 16 lanes of sums, added at the end
Bound: instructions with 512 tokens, 93% of the integer limit for int8 and 96% for W4A8; bytes with one, 94% and 69% of
    the read limit, 4096 x 4096 on two Zen 4 cores (bench/results/cpu-gemm-2026-11-21.json).
Tried: docs/log.md: "From cold memory rows are read one after the other, and fetched far ahead".
Twin: `octavo.ops.definition.int8_gemm`, `octavo.ops.definition.w4a8_gemm`

Weights [N, K] are taken as they lie.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.tasks import AHEAD
from octavo.backends.cpu.matmul.w8a8.epilogue import EPILOGUE, epilogue
from octavo.jit import host_cpu
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import i32_pointer, prefetch, stack, store_block
from octavo.jit.simd.integers import (
    INT8,
    STEP,
    copy_and_sum,
    dot_panel,
    dot_row,
    load_sums,
    pack_panel,
    store_row_sums,
    zero_sums,
)

WIDE, NARROW = (16, 4) if host_cpu.level() == "avx512vnni" else (4, 4)
"""Tokens of a tile: as many as the registers hold sums for; and of the tiles for the rest."""

AT_ONCE = 8 if host_cpu.level() == "avx512vnni" else 4
"""Tokens that rows are multiplied with in one reading, as they lie."""


def tiles_of(tokens: int) -> tuple[int, int]:
    """How many wide and narrow tiles hold `tokens` tokens."""
    return tokens // WIDE, -(-(tokens % WIDE) // NARROW)


def parts_of(tokens: int) -> list[tuple[int, int]]:
    """For `tokens` tokens, the first token and the number of tokens of each call of `matvec_kernel`."""
    return [(first, min(tokens - first, AT_ONCE)) for first in range(0, tokens, AT_ONCE)]


SLICE = 4096
"""Values of K in a panel: 64 kB, which the second cache holds."""

TILES = record("codes begins", "x x_stride tokens chunks", "tile offset")
"""codes                 int8, made: tiles of `tile` tokens, [K / 64, tile, 64] each
begins                int32, made: -offset * sum(x) of each token
x, x_stride, tokens   int8 rows of `chunks` times 64 codes, and bytes from one to the next
"""


@kernels(TILES)
def tiles_kernel() -> Any:
    """Task i makes tile i; missing tokens are zero-filled."""

    def tiles(a, task):
        chunks, tile, offset = a.chunks, a.tile, a.offset
        codes = a.codes + task * chunks * tile * 64
        zeros = stack(64)
        for i in range(16):
            i32_pointer(zeros)[i] = 0
        for t in range(tile):
            token, total = task * tile + t, 0
            there = token < a.tokens
            x = a.x + token * a.x_stride if there else zeros
            for chunk in range(chunks):
                total += copy_and_sum(codes + (chunk * tile + t) * 64, x)
                if there:
                    x += 64
            if there:
                i32_pointer(a.begins)[token] = -offset * total

    return tiles


BEGINS = record("begins", "x x_stride chunks", "offset")


@kernels(BEGINS)
def begins_kernel() -> Any:
    """Task i writes -offset * sum(x) of token i, as `TILES` has it, and nothing else."""

    def begins(a, task):
        x, copy, total = a.x + task * a.x_stride, stack(64), 0
        for _chunk in range(a.chunks):
            total += copy_and_sum(copy, x)
            x += 64
        i32_pointer(a.begins)[task] = -a.offset * total

    return begins


WEIGHT = "w w_stride row_bytes groups groups_stride"
"""w, w_stride, row_bytes  rows of `row_bytes` bytes, and bytes from one to the next
groups, groups_stride   float16 scales of each row's groups, or 0, and bytes from one row's to the next one's
"""

MATVEC = record(WEIGHT, "x x_stride first_token", "end")
"""x, x_stride  int8 codes of the tokens from `first_token` on, and bytes from one token's to the next one's
end          the address of a record `int8_epilogue.EPILOGUE`
"""


@kernels(MATVEC)
def matvec_kernel(kind: int, n: int) -> Any:
    """Task i makes 16 columns of y, from column 16 i on, for n tokens: rows of w as they lie, each read once."""
    finish, end_at, sums_bytes, x_step = epilogue(), EPILOGUE.at, n * 64, 64 if kind == INT8 else 128
    step, ahead = STEP, AHEAD

    def matvec(a, task):
        columns = min(end_at(a.end).columns - task * 16, 16)
        x_stride, sums = a.x_stride, stack(sums_bytes)  # [n, 16]
        for r in range(columns):
            w, groups = a.w + (task * 16 + r) * a.w_stride, a.groups + (task * 16 + r) * a.groups_stride
            x, acc = a.x, zero_sums(n)
            for _step in range(a.row_bytes // step):
                prefetch(w + ahead)
                acc = dot_row(acc, w, groups, x, x_stride, kind)  # n x [16], to be added up
                w, groups, x = w + step, groups + 2, x + x_step
            store_row_sums(sums + 4 * r, acc)
        finish(a.end, task, sums, a.first_token, n)

    return matvec


GEMM = record(WEIGHT, "x wide_tiles narrow_tiles", "partial_sums panels", "end")
"""x             int8 codes in tiles of WIDE and then of NARROW tokens, as `tiles_kernel` makes them
partial_sums  int32 memory for the sums of all tokens, where K is more than a slice
panels        times 16 columns that a task makes
end           the address of a record `int8_epilogue.EPILOGUE`
"""


@kernels(GEMM)
def gemm_kernel(kind: int) -> Any:
    """Task i makes 16 columns of y, from column 16 i on, for all tokens: a slice of K of 16 rows of w at a time.

    `panels` is 1.
    """
    finish, end_at, wide, narrow = epilogue(), EPILOGUE.at, WIDE, NARROW
    wide_tile, narrow_tile = tile_sums(wide), tile_sums(narrow)
    step, panels = STEP, 1 if kind == INT8 else 2
    panel_bytes, slice_bytes = 1024 * panels, SLICE // panels
    memory_bytes, sums_bytes = SLICE * 16, wide * 64

    def gemm(a, task):
        columns = min(end_at(a.end).columns - task * 16, 16)
        stride, groups_stride, row_bytes = a.w_stride, a.groups_stride, a.row_bytes
        w = a.w + task * 16 * stride
        groups = a.groups + task * 16 * groups_stride
        wides, narrows = a.wide_tiles, a.narrow_tiles
        tokens = wides * wide + narrows * narrow
        parts = a.partial_sums + task * tokens * 64
        panel, sums = stack(memory_bytes), stack(sums_bytes)
        chunks = row_bytes // step * panels
        start = 0
        while start < row_bytes:
            stop = min(start + slice_bytes, row_bytes)
            for at in range(start, stop, step):
                to = panel + (at - start) // step * panel_bytes
                pack_panel(to, w + at, stride, columns - 1, groups + at // step * 2, groups_stride, kind)
            count, done = (stop - start) // step * panels, start // step * panels
            first, last = start == 0, stop == row_bytes
            x = a.x
            for tile in range(wides):
                at = sums if last and first else parts + tile * wide * 64
                wide_tile(at, panel, x + done * wide * 64, count, first)
                x += chunks * wide * 64
                if last:
                    finish(a.end, task, at, tile * wide, wide)
            for tile in range(narrows):
                token = wides * wide + tile * narrow
                at = sums if last and first else parts + token * 64
                narrow_tile(at, panel, x + done * narrow * 64, count, first)
                x += chunks * narrow * 64
                if last:
                    finish(a.end, task, at, token, narrow)
            start = stop

    return gemm


def tile_sums(n: int) -> Any:
    """A function (sums, panel, x, chunks, begins) that adds to n x 16 sums the products of a panel and n tokens.

    Where `begins`, sums begin at 0 instead. The panel is [chunks, 16 rows, 64], x is [chunks, n, 64].
    """

    def tile(sums, panel, x, chunks, begins):
        acc = zero_sums(n) if begins else load_sums(sums, n)
        for _chunk in range(chunks):
            acc = dot_panel(acc, panel, x)
            panel, x = panel + 1024, x + n * 64
        store_block(sums, 64, acc)

    return inner(tile, n)
