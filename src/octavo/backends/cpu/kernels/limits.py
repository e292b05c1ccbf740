"""A loop that only reads: what memory can deliver to vector loads."""

from __future__ import annotations

from typing import Any

from octavo.jit.compile import kernels
from octavo.jit.simd import add, arg, f32_pointer, load_f32x16, splat, sum_lanes


@kernels
def read_kernel() -> Any:
    """Task i sums part i of the data. Arguments: data, sums, bytes of a part (a multiple of 256)."""

    def read(args, task):
        nbytes = arg(args, 2)
        at = arg(args, 0) + task * nbytes
        a, b, c, d = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
        for _line in range(nbytes // 256):
            a, b = add(a, load_f32x16(at)), add(b, load_f32x16(at + 64))
            c, d = add(c, load_f32x16(at + 128)), add(d, load_f32x16(at + 192))
            at += 256
        f32_pointer(arg(args, 1))[task] = sum_lanes(add(add(a, b), add(c, d)))

    return read
