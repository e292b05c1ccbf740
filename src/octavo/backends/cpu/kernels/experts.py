"""Products with the experts that each token chose.

A few tokens take one product for each (token, expert) pair. With many, pairs are sorted by expert, so that an expert's
weights are read once: `sort_pairs`, rows of x in that order, their codes, products, and rows of y back in order.
"""

from __future__ import annotations

from typing import Any

from octavo.jit.compile import kernels
from octavo.jit.simd import arg, call, i32_pointer, i64_pointer, stack


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


@kernels
def sort_pairs_kernel() -> Any:
    """One task. Arguments: ids, pairs, experts, pairs that share a row of x; then int32 arrays that are made: starts
    [experts + 1], where an expert's pairs begin; sources [pairs], the rows of x in order; places [pairs], where each
    pair went.
    """

    def sort_pairs(args, task):
        ids, pairs, experts, sharing = i32_pointer(arg(args, 0)), arg(args, 1), arg(args, 2), arg(args, 3)
        starts, sources, places = i32_pointer(arg(args, 4)), i32_pointer(arg(args, 5)), i32_pointer(arg(args, 6))
        for expert in range(experts + 1):
            starts[expert] = 0
        for pair in range(pairs):
            starts[ids[pair] + 1] += 1
        for expert in range(experts):
            starts[expert + 1] += starts[expert]
        for pair in range(pairs):
            place = starts[ids[pair]]
            starts[ids[pair]] = place + 1
            sources[place] = pair // sharing
            places[pair] = place
        for expert in range(experts, 0, -1):
            starts[expert] = starts[expert - 1]
        starts[0] = 0

    return sort_pairs


@kernels
def quantize_sorted_kernel(tile: int) -> Any:
    """Task i quantizes chunk i % chunks of all rows of expert i // chunks, in tiles of their own.

    Arguments: quantize kernel, starts, codes, bytes of a row's codes, k, x, x stride, chunks.
    """

    def quantize_sorted(args, task):
        chunks, starts = arg(args, 7), i32_pointer(arg(args, 1))
        expert = task // chunks
        first, count = starts[expert], starts[expert + 1] - starts[expert]
        memory = stack(64)
        inner = i64_pointer(memory)
        inner[0] = arg(args, 2) + first * arg(args, 3)
        inner[1] = count
        inner[2] = arg(args, 4)
        inner[3] = arg(args, 5) + first * arg(args, 6)
        inner[4] = arg(args, 6)
        inner[5] = chunks
        tiles, rest = count // tile, count % tile
        while rest > 0:
            tiles, rest = tiles + 1, rest & (rest - 1)
        for i in range(tiles):
            call(arg(args, 0), memory, i * chunks + task % chunks)

    return quantize_sorted


@kernels
def mul_mat_sorted_kernel(tiles: tuple[int, ...]) -> Any:
    """Task i makes 16 rows of y for all rows of x of one expert, with a product kernel for each size of `tiles`.

    Arguments: weights, bytes of an expert, starts, x, bytes of a row of x, y, rows, k, tiles of 16 rows, the product's
    table (or x stride), then the product kernels.
    """
    sizes, largest, record_bytes = len(tiles), tiles[0], 128
    memory_bytes = record_bytes * sizes

    def mul_mat_sorted(args, task):
        n_tiles, rows, starts = arg(args, 8), arg(args, 6), i32_pointer(arg(args, 2))
        expert = task // n_tiles
        first, stop = starts[expert], starts[expert + 1]
        memory = stack(memory_bytes)
        n, kernel, record = largest, 0, memory
        previous = i64_pointer(memory)
        for i in range(sizes):
            count = (stop - first) // n
            if count > 0:
                inner = i64_pointer(record)
                inner[0] = arg(args, 0) + expert * arg(args, 1)
                inner[1] = arg(args, 3) + first * arg(args, 4)
                inner[2] = arg(args, 5) + first * rows * 4
                inner[3] = rows
                inner[4] = arg(args, 7)
                inner[5] = rows * 4
                inner[6] = count
                inner[7] = 0
                inner[12] = arg(args, 9)
                inner[13] = 0
                if kernel == 0:
                    kernel = arg(args, 10 + i)
                else:
                    previous[13] = arg(args, 10 + i)
                    previous[14] = record
                previous = inner
                record += record_bytes
                first += count * n
            n //= 2
        if kernel != 0:
            call(kernel, memory, task % n_tiles)

    return mul_mat_sorted
