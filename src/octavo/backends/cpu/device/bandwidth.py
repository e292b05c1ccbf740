# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""A loop that only reads: what memory can deliver to vector loads.

Algorithm: a sum of everything, as STREAM measures memory.
Tile:
    task i   | 256 bytes | 256 | ...    four vectors of 16 floats a turn, each with a sum of its own
Bound: bytes, by definition: 15.4 GB/s with one thread and 91.5 with eight on a Xeon
    (bench/results/cpu-grids-avx512vnni-2026-11-29.json). Shares of the read limit elsewhere are of this.
Tried: nothing else.
Twin: `numpy.sum`
"""

from __future__ import annotations

from typing import Any

from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import add, f32_pointer, load_f32x16, splat, sum_lanes

READ = record("data sums part_bytes")


@kernels(READ)
def read_kernel() -> Any:
    """Task i sums part i of the data, a multiple of 256 bytes."""

    def read(a, task):
        nbytes = a.part_bytes
        at = a.data + task * nbytes
        w, x, y, z = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for _line in range(nbytes // 256):
            w, x = add(w, load_f32x16(at)), add(x, load_f32x16(at + 64))
            y, z = add(y, load_f32x16(at + 128)), add(z, load_f32x16(at + 192))
            at += 256
        f32_pointer(a.sums)[task] = sum_lanes(add(add(w, x), add(y, z)))

    return read
