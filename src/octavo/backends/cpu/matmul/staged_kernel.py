# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products with many tokens where unpacking codes takes long: a piece of 16 rows is unpacked once for many tiles.

Algorithm: GotoBLAS's blocking: a packed panel of one factor in the L1, the other's tiles streamed past it.
Tile:
    panel    16 rows x PIECE values, unpacked: in the L1
    tokens   | tile | tile | ... up to 64 tokens, whose sums wait in memory from piece to piece
    task     4 panels, for which a piece of activations is in the L2
Bound: instructions, of the pipes that multiply: a block of 16 rows, 32 values and 4 tokens takes 60 cycles on Zen 3, 39
    without the floats at its end (docs/log.md, "AVX2's products of four-bit codes end at the pipes that multiply").
Tried: docs/log.md: "AVX2's products of four-bit codes end at the pipes that multiply, not at instructions".
Twin: `octavo.backends.reference.ops.mul_mat`

A task goes through its rows in pieces of `PIECE` values. It unpacks a piece's codes to memory of its own, and adds the
piece's products to the sums of one tile of tokens after the other. Its next 16 rows follow.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.tasks import finish
from octavo.backends.cpu.weights.layout import ROWS, STEP, TiledLayout
from octavo.jit.compile import inner
from octavo.jit.simd import call, load_block, prefetch, stack, store_block, zeros

PIECE = 256
"""Values of K whose codes are unpacked at a time."""

TOKENS = 64
"""Tokens whose sums are kept at a time, in 4 KiB."""

PANELS = 4
"""Tiles of 16 rows that a task makes, so that activations come from far caches a quarter as often.

It is every fourth task that does; the others end at once, so that task i stands for the i-th tile in any kernel.
"""

WIDE_ROWS = 1024
"""Rows of a weight that gives enough such tasks for all threads; where there are fewer, each task makes a tile."""


def staged_product(
    layout: TiledLayout, n: int, unpack: Any, add_super: Any, block_bytes: int, x_first: int, x_block_bytes: int
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
    sums_bytes, most_panels, wide_rows, tile_rows = PANELS * most * tile_bytes, PANELS, WIDE_ROWS, ROWS
    piece_bytes = piece * x_bytes
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
        panels = most_panels if a.rows >= wide_rows else 1
        if task % panels != 0:
            return
        supers, codes, sums = a.k // super_values, stack(room), stack(sums_bytes)
        last = min(task + panels, -(-a.rows // tile_rows))
        for first in range(0, a.tiles, most):
            tiles, tokens = min(a.tiles - first, most), a.x + first * n * a.x_stride + a.k // STEP * x_first
            for done in range(0, supers, piece):
                here, at = min(supers - done, piece), sums
                for panel in range(task, last):
                    w = a.weights + (panel * supers + done) * super_bytes
                    for i in range(here):
                        unpack(w + i * super_bytes, codes + i * unpacked_bytes, a.table)
                    x = tokens + done * x_bytes
                    for _tile in range(tiles):
                        if panel == last - 1:  # prefetch the next piece of activations
                            for line in range(0, piece_bytes, 64):
                                prefetch(x + piece_bytes + line)
                        acc = zeros(n) if done == 0 else load_block(at, row_bytes, n)  # n x [16]
                        store_block(at, row_bytes, add_piece(acc, w, x, codes, here))
                        x += n * a.x_stride
                        at += tile_bytes
            at = sums
            for panel in range(task, last):
                for tile in range(tiles):
                    end(a, panel, (first + tile) * n, load_block(at, row_bytes, n))
                    at += tile_bytes
        if a.tail != 0:
            for panel in range(task, last):
                call(a.tail, a.tail_arguments, panel)

    return product
