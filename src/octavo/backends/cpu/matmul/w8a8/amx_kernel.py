# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of int8 activations with weights of 8 or 4 bits by matrix tiles (AMX): what `int8_kernel` computes.

Algorithm: GotoBLAS's blocking around tile products of 16 tokens x 16 rows x 64 values.
Tile:
    task    PANELS x 16 rows, packed as `int8_kernel` packs them, in the L2: 4,096 values of each at a time
    sums    [16 tokens, 16 rows] int32 of 512 tokens; `tile_sweep` says how tiles come past each other
Bound: instructions: half of what tiles reach, 7 TOPS on 10 threads (docs/log.md, "Matrix tiles are fetched to the L2,
    not to the L1").
Tried: docs/log.md: "Matrix tiles are fetched to the L2, not to the L1".
Twin: `octavo.ops.definition.int8_gemm`, `octavo.ops.definition.w4a8_gemm`
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.tile_sweep import (
    PANEL_SUMS,
    PANELS,
    STEPS,
    TILE_BYTES,
    TILES,
    panels_of_task,
    sweep,
)
from octavo.backends.cpu.matmul.w8a8.epilogue import EPILOGUE, epilogue
from octavo.backends.cpu.matmul.w8a8.int8_kernel import GEMM, NARROW, SLICE, WIDE, gemm_kernel, tile_sums
from octavo.jit import host_cpu
from octavo.jit.compile import kernels
from octavo.jit.simd import amx, prefetch, stack
from octavo.jit.simd.integers import INT8, STEP, pack_panel

FETCHED = 1024
"""How far ahead of what is packed rows are fetched: the hardware does not follow 16 of them."""


def product_kernel(kind: int) -> Any:
    """The kernel of products of many tokens with a kind of weight."""
    return amx_gemm_kernel(kind) if host_cpu.has_tiles() else gemm_kernel(kind)


def panels_of(rows: int, threads: int) -> int:
    """Panels of 16 rows of a weight that a task of that kernel makes."""
    return panels_of_task(rows, threads) if host_cpu.has_tiles() else 1


@kernels(GEMM)
def amx_gemm_kernel(kind: int) -> Any:
    """`gemm_kernel`, for as many panels a task as `panels_of` says."""
    finish, end_at, wide, narrow = epilogue(), EPILOGUE.at, WIDE, NARROW
    add_slice, narrow_tile, halves = sweep(amx.add_unsigned), tile_sums(NARROW), 1 if kind == INT8 else 2
    step, packed_bytes, most = STEP, SLICE // halves, TILES
    step_bytes, panel_bytes, tile_bytes, panel_sums = TILE_BYTES * halves, SLICE * 16, TILE_BYTES, PANEL_SUMS
    room, sums_bytes, steps, ahead = PANELS * SLICE * 16, PANELS * PANEL_SUMS, STEPS, FETCHED

    def gemm(a, task):
        amx.configure(64)
        task *= a.panels
        rows = end_at(a.end).columns
        panels, row_bytes = min(a.panels, (rows + 15) // 16 - task), a.row_bytes
        stride, groups_stride = a.w_stride, a.groups_stride
        wides, chunks = a.wide_tiles, row_bytes // step * halves
        packed, sums, x_stride = stack(room), stack(sums_bytes), chunks * tile_bytes
        for begin in range(0, max(wides, 1), most):
            tiles = min(wides - begin, most)
            narrows = a.narrow_tiles if begin + tiles == wides else 0
            rest = tiles * tile_bytes
            for start in range(0, row_bytes, packed_bytes):
                stop = min(start + packed_bytes, row_bytes)
                count, done = (stop - start) // step * halves, start // step * halves
                for panel in range(panels):
                    column = (task + panel) * 16
                    w, groups = a.w + column * stride, a.groups + column * groups_stride
                    for at in range(start, stop, step):
                        to = packed + panel * panel_bytes + (at - start) // step * step_bytes
                        last = min(rows - column, 16) - 1
                        for row in range(last + 1):
                            prefetch(w + row * stride + at + ahead)
                        pack_panel(to, w + at, stride, last, groups + at // step * 2, groups_stride, kind)
                x = a.x + (begin * chunks + done) * tile_bytes
                for part in range(0, count, steps):
                    here, afresh = min(steps, count - part), start + part == 0
                    w = packed + part * tile_bytes
                    add_slice(sums, x + part * tile_bytes, x_stride, tiles, w, panel_bytes, panels, here, afresh)
                for tile in range(narrows):
                    x = a.x + (wides * chunks * wide + (tile * chunks + done) * narrow) * 64
                    for panel in range(panels):
                        at = sums + panel * panel_sums + rest + tile * narrow * 64
                        narrow_tile(at, packed + panel * panel_bytes, x, count, start == 0)
            for panel in range(panels):
                at = sums + panel * panel_sums
                finish(a.end, task + panel, at, begin * wide, tiles * wide + narrows * narrow)
        amx.release()

    return gemm
