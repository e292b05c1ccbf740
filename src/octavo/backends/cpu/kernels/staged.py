"""Products with many tokens where unpacking codes takes long: a piece of 16 rows is unpacked once for many tiles.

A task goes through its rows in pieces of `PIECE` values. It unpacks a piece's codes to memory of its own, which stays
in the first level of the cache, and adds the piece's products to the sums of one tile of tokens after the other.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.kernels.product import finish
from octavo.backends.cpu.layout import ROWS, STEP, Layout
from octavo.jit.compile import inner
from octavo.jit.simd import call, load_block, stack, store_block, zeros

PIECE = 256
"""Values of K whose codes are unpacked at a time."""

TOKENS = 64
"""Tokens whose sums are kept at a time, in 4 KiB."""


def staged_product(
    layout: Layout, n: int, unpack: Any, add_super: Any, block_bytes: int, x_first: int, x_block_bytes: int
) -> Any:
    """The function of a kernel, for tiles of n tokens.

    unpack       a function (super-block, memory, table) that unpacks a super-block's codes to memory
    add_super    a function (sums, super-block, activations, codes in memory) that adds a super-block's products
    block_bytes  bytes of 16 rows x 32 values when they are unpacked

    x_first and x_block_bytes say where a tile's activations lie, see `_Places` of `mul_mat`.
    """
    super_values, super_bytes, row_bytes = layout.super, layout.super_bytes, ROWS * 4
    piece = max(1, PIECE // super_values)
    unpacked_bytes, x_bytes = super_values // STEP * block_bytes, super_values // STEP * x_block_bytes
    room, most, tile_bytes = piece * unpacked_bytes, TOKENS // n, n * row_bytes
    sums_bytes = most * tile_bytes
    end = inner(finish(n), n)

    def add_piece(acc, w, x, codes, supers):
        for _super in range(supers):
            acc = add_super(acc, w, x, codes)  # n x [16]
            w += super_bytes
            x += x_bytes
            codes += unpacked_bytes
        return acc

    add_piece = inner(add_piece, layout, n, inline="always")

    def product(a, task):
        supers, codes, sums = a.k // super_values, stack(room), stack(sums_bytes)
        for first in range(0, a.tiles, most):
            tiles, w = min(a.tiles - first, most), a.weights + task * (supers * super_bytes)
            for done in range(0, supers, piece):
                here = min(supers - done, piece)
                for i in range(here):
                    unpack(w + i * super_bytes, codes + i * unpacked_bytes, a.table)
                x = a.x + first * n * a.x_stride + a.k // STEP * x_first + done * x_bytes
                for tile in range(tiles):
                    at = sums + tile * tile_bytes
                    acc = zeros(n) if done == 0 else load_block(at, row_bytes, n)  # n x [16]
                    store_block(at, row_bytes, add_piece(acc, w, x, codes, here))
                    x += n * a.x_stride
                w += here * super_bytes
            for tile in range(tiles):
                end(a, task, (first + tile) * n, load_block(sums + tile * tile_bytes, row_bytes, n))
        if a.tail != 0:
            call(a.tail, a.tail_arguments, task)

    return product
