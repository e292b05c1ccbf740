# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of int8 activations with weights of 8 or 4 bits by matrix tiles (AMX): what `int8_kernel` computes.

Algorithm: GotoBLAS's blocking around tile products of 16 tokens x 16 rows x 64 values.
Tile:
    task    PANELS x 16 rows, packed as `int8_kernel` packs them: a slice of K of each, in the L2
    x       4 tiles of 16 tokens at a time, from far caches once for all panels
    sums    4 tiles [16 tokens, 16 rows] int32, over a slice of K; a tile of weights is loaded once for the four
Bound: bytes of tiles from the L2, 5 kB for four products. Not measured.
Tried: nothing else.
Twin: `octavo.ops.definition.int8_gemm`, `octavo.ops.definition.w4a8_gemm`
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.staged_kernel import PANELS, WIDE_ROWS
from octavo.backends.cpu.matmul.w8a8.epilogue import EPILOGUE, epilogue
from octavo.backends.cpu.matmul.w8a8.int8_kernel import GEMM, NARROW, SLICE, WIDE, gemm_kernel, tile_sums
from octavo.jit import host_cpu
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import amx, stack
from octavo.jit.simd.integers import INT8, STEP, pack_panel

TILE_BYTES = 1024
"""Of 16 x 64 codes, and of 16 x 16 int32."""


def product_kernel(kind: int) -> Any:
    """The kernel of products of many tokens with a kind of weight."""
    return amx_gemm_kernel(kind) if host_cpu.has_tiles() else gemm_kernel(kind)


@kernels(GEMM)
def amx_gemm_kernel(kind: int) -> Any:
    """`gemm_kernel`; every PANELS-th task makes the columns of those after it too, if there are many."""
    finish, end_at, wide, narrow = epilogue(), EPILOGUE.at, WIDE, NARROW
    four_tiles, one_tile, narrow_tile = _wide_sums(4), _wide_sums(1), tile_sums(NARROW)
    step, halves, most_panels, wide_rows = STEP, 1 if kind == INT8 else 2, PANELS, WIDE_ROWS
    panel_bytes, slice_bytes, tile_bytes = TILE_BYTES * halves, SLICE // halves, TILE_BYTES
    memory_bytes, room, sums_bytes = SLICE * 16, PANELS * SLICE * 16, 4 * TILE_BYTES

    def gemm(a, task):
        rows = end_at(a.end).columns
        panels = most_panels if rows >= wide_rows else 1
        if task % panels != 0:
            return
        amx.configure(64)
        stop_task = min(task + panels, (rows + 15) // 16)
        stride, groups_stride, row_bytes = a.w_stride, a.groups_stride, a.row_bytes
        wides, narrows = a.wide_tiles, a.narrow_tiles
        tokens, chunks = wides * wide + narrows * narrow, row_bytes // step * halves
        packed, sums = stack(room), stack(sums_bytes)
        start = 0
        while start < row_bytes:
            stop = min(start + slice_bytes, row_bytes)
            count, done = (stop - start) // step * halves, start // step * halves
            first, last = start == 0, stop == row_bytes
            for column in range(task, stop_task):
                w, groups = a.w + column * 16 * stride, a.groups + column * 16 * groups_stride
                columns, panel = min(rows - column * 16, 16), packed + (column - task) * memory_bytes
                for at in range(start, stop, step):
                    to = panel + (at - start) // step * panel_bytes
                    pack_panel(to, w + at, stride, columns - 1, groups + at // step * 2, groups_stride, kind)
            tile = 0
            while tile < wides:
                size = 4 if tile + 4 <= wides else 1
                x = a.x + (tile * chunks + done) * tile_bytes
                for column in range(task, stop_task):
                    at = sums if last and first else a.partial_sums + (column * tokens + tile * wide) * 64
                    panel = packed + (column - task) * memory_bytes
                    if size == 4:
                        four_tiles(at, panel, x, chunks * tile_bytes, count, first)
                    else:
                        one_tile(at, panel, x, chunks * tile_bytes, count, first)
                    if last:
                        finish(a.end, column, at, tile * wide, size * wide)
                tile += size
            for tile in range(narrows):
                token = wides * wide + tile * narrow
                x = a.x + (token * chunks + done * narrow) * 64
                for column in range(task, stop_task):
                    at = sums if last and first else a.partial_sums + (column * tokens + token) * 64
                    narrow_tile(at, packed + (column - task) * memory_bytes, x, count, first)
                    if last:
                        finish(a.end, column, at, token, narrow)
            start = stop
        amx.release()

    return gemm


def _wide_sums(tiles: int) -> Any:
    """A function (sums, panel, x, bytes from tile to tile, chunks, begins) like those of `tile_sums`, for `tiles` tiles
    of 16 tokens. It is part of the function that calls it, as tiles are of no other."""
    size = TILE_BYTES

    def four(sums, panel, x, x_stride, chunks, begins):
        if begins:
            amx.zero(0)
            amx.zero(1)
            amx.zero(2)
            amx.zero(3)
        else:
            amx.load(0, sums, 64)
            amx.load(1, sums + size, 64)
            amx.load(2, sums + 2 * size, 64)
            amx.load(3, sums + 3 * size, 64)
        for chunk in range(chunks):
            at = x + chunk * size
            amx.load(6, panel + chunk * size, 64)
            amx.load(4, at, 64)
            amx.dot_unsigned(0, 4, 6)
            amx.load(5, at + x_stride, 64)
            amx.dot_unsigned(1, 5, 6)
            amx.load(4, at + 2 * x_stride, 64)
            amx.dot_unsigned(2, 4, 6)
            amx.load(5, at + 3 * x_stride, 64)
            amx.dot_unsigned(3, 5, 6)
        amx.store(0, sums, 64)
        amx.store(1, sums + size, 64)
        amx.store(2, sums + 2 * size, 64)
        amx.store(3, sums + 3 * size, 64)

    def one(sums, panel, x, x_stride, chunks, begins):
        if begins:
            amx.zero(0)
        else:
            amx.load(0, sums, 64)
        for chunk in range(chunks):
            amx.load(6, panel + chunk * size, 64)
            amx.load(4, x + chunk * size, 64)
            amx.dot_unsigned(0, 4, 6)
        amx.store(0, sums, 64)

    return inner(four if tiles == 4 else one, inline="always")
