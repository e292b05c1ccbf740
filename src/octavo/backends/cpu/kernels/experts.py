"""Products with the experts that each token chose."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.compile import kernels
from octavo.backends.cpu.simd import arg, call, i32_pointer, i64_pointer, stack


@kernels
def mul_mat_id_kernel() -> Any:
    """Task i makes 16 rows of y for one (token, expert) pair, through the product kernel for one token.

    Arguments: kernel, weights, bytes of an expert, x, x stride, pairs that share a row of x, ids, experts a token, y,
    rows, k, tiles of 16 rows, and the product's table (or x stride).
    """

    def mul_mat_id(args, task):
        tiles, rows = arg(args, 11), arg(args, 9)
        pair = task // tiles
        expert = i32_pointer(arg(args, 6))[pair]
        memory = stack(128)
        inner = i64_pointer(memory)
        inner[0] = arg(args, 1) + expert * arg(args, 2)
        inner[1] = arg(args, 3) + pair // arg(args, 5) * arg(args, 4)
        inner[2] = arg(args, 8) + pair * rows * 4
        inner[3] = rows
        inner[4] = arg(args, 10)
        inner[5] = rows * 4
        inner[6] = 1
        inner[7] = 0
        inner[12] = arg(args, 12)
        inner[13] = 0
        call(arg(args, 0), memory, task % tiles)

    return mul_mat_id
