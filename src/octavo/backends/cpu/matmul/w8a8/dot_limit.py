# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""How many integer products a core can add up: the inner loop of `int8_kernel`, on what the first cache holds.

Algorithm: `int8_kernel`'s tile of sums, over and over.
Tile:
    panel [4 chunks, 16 rows, 64] and x [4 chunks, WIDE, 64] in the L1, REPEATS times
Bound: instructions, by definition: 843 GOPS with two threads of a Zen 4 (bench/results/cpu-gemm-2026-11-21.json).
Tried: nothing else.
Twin: `octavo.ops.definition.int8_gemm`
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.w8a8.int8_kernel import WIDE, tile_sums
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import i64_pointer, stack

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
