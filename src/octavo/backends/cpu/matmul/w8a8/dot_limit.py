# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""How many integer products a core can add up: the inner loop of `int8_kernel`, on what the first cache holds.

Algorithm: `int8_kernel`'s tile of sums, over and over.
Tile:
    panel [4 chunks, 16 rows, 64] and x [4 chunks, WIDE, 64] in the L1, REPEATS times; or two tiles of each
Bound: instructions, by definition: 843 GOPS with two threads of a Zen 4 (bench/results/cpu-gemm-2026-11-21.json).
Tried: nothing else.
Twin: `octavo.ops.definition.int8_gemm`
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.tile_sweep import TILE_BYTES
from octavo.backends.cpu.matmul.w8a8.int8_kernel import WIDE, tile_sums
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import amx, i64_pointer, stack

CHUNKS, REPEATS = 4, 256

OPERATIONS = CHUNKS * REPEATS * WIDE * 16 * 64 * 2
"""Multiplications and additions of a task."""


DOT_LIMIT = record("out")


@kernels(DOT_LIMIT)
def dot_limit_kernel() -> Any:
    """Task i adds up products of zeros, and writes one of its sums to element i of `out`, int64."""
    sums_of = tile_sums(WIDE)
    chunks, repeats = CHUNKS, REPEATS
    x_bytes, sums_bytes, panel_bytes = CHUNKS * WIDE * 64, WIDE * 64, CHUNKS * 1024

    def dot_limit(a, task):
        panel, x, sums = stack(panel_bytes), stack(x_bytes), stack(sums_bytes)
        for address, size in ((panel, panel_bytes), (x, x_bytes), (sums, sums_bytes)):
            for i in range(size // 8):
                i64_pointer(address)[i] = 0
        for _repeat in range(repeats):
            sums_of(sums, panel, x, chunks, False)
        i64_pointer(a.out)[task] = i64_pointer(sums)[task % 8]

    return dot_limit


@kernels(DOT_LIMIT)
def tile_limit_kernel() -> Any:
    """The same by matrix tiles: two of tokens times two of weights, as often as makes as many operations."""
    repeats, of_tile, of_two, size = OPERATIONS // (4 * 16 * 16 * 64 * 2), TILE_BYTES, 2 * TILE_BYTES, 4 * TILE_BYTES

    def tile_limit(a, task):
        x, sums = stack(size), stack(size)
        for i in range(size // 8):
            i64_pointer(x)[i] = 0
        amx.configure(64)
        amx.begin_sums(sums, of_tile, of_two, 64, True, 2, 2)
        for _repeat in range(repeats):
            amx.add_unsigned(x, of_tile, x + of_two, of_tile, 2, 2)
        amx.end_sums(sums, of_tile, of_two, 64, 2, 2)
        amx.release()
        i64_pointer(a.out)[task] = i64_pointer(sums)[task % 8]

    return tile_limit
