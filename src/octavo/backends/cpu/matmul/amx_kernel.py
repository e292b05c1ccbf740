# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products with tiles of 16 tokens by matrix tiles (AMX), to the bit those of `kernel`.

Algorithm: llama.cpp's AMX products of blocks: a tile product for each block of 32 values, read out and scaled; around
    it GotoBLAS's blocking, as in `staged_kernel`.
Tile:
    task    PANELS x 16 rows, each all tokens in turn: activations come from far caches once for 64 rows
    panel   16 rows x PIECE values, codes and float32 scales unpacked: in the L1
    sums    [512 tokens, 16] float32 a panel, from piece to piece: in the L2
    dots    4 tiles of 16 tokens x 16 rows x (32 or 16 values) int32, while the 4 before are scaled and added
Bound: instructions that scale: of a block with one scale they take some 24 cycles, its tile product 16. Not measured.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.mul_mat`

Sums are added in the order of `kernel`, so a token's numbers do not depend on how many tokens a step has.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.kernel import ROW_BYTES, Places, store_group_scales, super_minima, super_scales
from octavo.backends.cpu.matmul.staged_kernel import PANELS, WIDE_ROWS
from octavo.backends.cpu.matmul.tasks import PRODUCT, finish
from octavo.backends.cpu.weights.decode import unpack_codes
from octavo.backends.cpu.weights.layout import ROWS, STEP, TiledLayout
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    amx,
    call,
    fma_made_dots,
    fma_sums,
    load_block,
    load_f32x16,
    prefetch,
    raise_codes,
    stack,
    store_block,
    store_codes,
    zeros,
)
from octavo.jit.simd.dots import BIASED, PLAIN

N = 16
"""Tokens of a tile."""

PIECE = 1024
"""Values of K whose codes are unpacked at a time."""

TOKENS = 512
"""Tokens whose sums are kept at a time."""

MIN_TILES = 8
"""From this number of tiles on, unpacking codes to memory pays."""

DOT_BYTES = N * ROW_BYTES
"""Bytes of a tile of int32."""

CODE_BYTES = ROWS * STEP
"""Bytes of a block's codes."""


def pays(layout: TiledLayout, n: int, tiles: int) -> bool:
    """Whether this is faster than `kernel` for `tiles` tiles of n tokens, where the host has matrix tiles."""
    return n == N and tiles >= MIN_TILES and layout.groups == 1


@kernels(PRODUCT, long=True)
def amx_mul_mat_kernel(layout: TiledLayout) -> Any:
    """`mul_mat_kernel` for tiles of 16 tokens."""
    at, groups, super_blocks = Places(layout, N), layout.groups, layout.super // STEP
    depth, piece, unpacked = STEP // groups, max(1, PIECE // layout.super), unpacked_bytes(layout)
    room, x_bytes, super_bytes = piece * super_blocks * unpacked, at.x_bytes, layout.super_bytes
    n, row_bytes, most, tile_bytes = N, ROW_BYTES, TOKENS // N, N * ROW_BYTES
    sums_bytes, most_panels, wide_rows, tile_rows = PANELS * most * tile_bytes, PANELS, WIDE_ROWS, ROWS
    batch, dots_bytes = len(amx.SUMS) // groups, len(amx.SUMS) * DOT_BYTES
    both_bytes, block_dots = 2 * dots_bytes, groups * DOT_BYTES
    unpack, end, add = _unpack_super(layout), inner(finish(N), N), _add_block(layout)
    start_dots, dots_of_block = _dots(layout, batch), _dots(layout, 1)

    def product(a, task):
        panels = most_panels if a.rows >= wide_rows else 1
        if task % panels != 0:
            return
        amx.configure(depth)
        supers, codes, sums, dots = a.k // (super_blocks * 32), stack(room), stack(sums_bytes), stack(both_bytes)
        last = min(task + panels, -(-a.rows // tile_rows))
        for first in range(0, a.tiles, most):
            tiles, tokens = min(a.tiles - first, most), a.x + first * n * a.x_stride
            for done in range(0, supers, piece):
                here, at = min(supers - done, piece), sums
                count = here * super_blocks
                whole = count // batch * batch
                for panel in range(task, last):
                    w = a.weights + (panel * supers + done) * super_bytes
                    for i in range(here):
                        unpack(w + i * super_bytes, codes + i * super_blocks * unpacked, a.table)
                    for tile in range(tiles):
                        x = tokens + tile * n * a.x_stride + done * super_blocks * x_bytes
                        acc = zeros(n) if done == 0 else load_block(at, row_bytes, n)  # n x [16]
                        if whole > 0:
                            start_dots(dots, x, codes)
                        made, other = dots, dots + dots_bytes
                        for block in range(0, whole, batch):
                            if block + batch < whole:
                                start_dots(other, x + (block + batch) * x_bytes, codes + (block + batch) * unpacked)
                            for i in range(batch):
                                acc = add(acc, made + i * block_dots, x, codes, block + i)
                            made, other = other, made
                        for block in range(whole, count):
                            dots_of_block(dots, x + block * x_bytes, codes + block * unpacked)
                            acc = add(acc, dots, x, codes, block)
                        store_block(at, row_bytes, acc)
                        at += tile_bytes
            at = sums
            for panel in range(task, last):
                for tile in range(tiles):
                    end(a, panel, (first + tile) * n, load_block(at, row_bytes, n))
                    at += tile_bytes
        amx.release()
        if a.tail != 0:
            for panel in range(task, last):
                call(a.tail, a.tail_arguments, panel)

    return product


def unpacked_bytes(layout: TiledLayout) -> int:
    """Bytes of an unpacked block: codes, float32 scales of its groups, and their minima as `fma_dots_2` takes them."""
    return CODE_BYTES + layout.groups * ROW_BYTES * (1 if layout.minima is None else 2)


def _unpack_super(layout: TiledLayout) -> Any:
    """A function (super-block, memory, table) that unpacks a super-block; codes with an offset become signed."""
    blocks, block_at, block_bytes = layout.super // STEP, layout.head_bytes, layout.block_bytes
    codes_of, unpacked, signed = unpack_codes(layout), unpacked_bytes(layout), layout.offset != 0
    ahead, code_bytes = PIECE // STEP * block_bytes, CODE_BYTES
    scale, bias, store = super_scales(layout), super_minima(layout), store_group_scales(layout)

    def unpack_super(w, memory, table):
        d, less = scale(w, 0), bias(w, 0)  # [16]
        block = w + block_at
        for _block in range(blocks):
            for line in range(0, block_bytes, 64):
                prefetch(block + ahead + line)
            codes = codes_of(block, table)
            store_codes(memory, raise_codes(codes, 128) if signed else codes)
            store(memory + code_bytes, w, block, d, less)
            block += block_bytes
            memory += unpacked

    return inner(unpack_super, layout)


def _dots(layout: TiledLayout, blocks: int) -> Any:
    """A function (dots, activations, unpacked codes) that makes the dots of a batch, or of one block, int32.

    They are [blocks, groups, n, 16]. The function is part of the one that calls it, as tiles are of no other.
    """
    groups, x_bytes, unpacked = layout.groups, Places(layout, N).x_bytes, unpacked_bytes(layout)
    dot = amx.dot_signed if layout.offset else amx.dot_unsigned
    size, step, row, depth, half = DOT_BYTES, STEP, ROW_BYTES, STEP // groups, CODE_BYTES // groups
    (_, x1, x2, x3), (_, c1, c2, c3) = (
        [i // groups * of_block + i % groups * of_group for i in amx.SUMS]
        for of_block, of_group in ((x_bytes, depth), (unpacked, half))
    )

    def batch(dots, x, codes):
        amx.zero(0)
        amx.load(4, x, step)
        amx.load(6, codes, row)
        dot(0, 4, 6)
        amx.zero(1)
        amx.load(5, x + x1, step)
        amx.load(7, codes + c1, row)
        dot(1, 5, 7)
        amx.zero(2)
        amx.load(4, x + x2, step)
        amx.load(6, codes + c2, row)
        dot(2, 4, 6)
        amx.zero(3)
        amx.load(5, x + x3, step)
        amx.load(7, codes + c3, row)
        dot(3, 5, 7)
        amx.store(0, dots, row)
        amx.store(1, dots + size, row)
        amx.store(2, dots + 2 * size, row)
        amx.store(3, dots + 3 * size, row)

    def block(dots, x, codes):
        for group in range(groups):
            amx.zero(0)
            amx.load(4, x + group * depth, step)
            amx.load(6, codes + group * half, row)
            dot(0, 4, 6)
            amx.store(0, dots + group * size, row)

    return inner(block if blocks == 1 else batch, layout, inline="always")


def _add_block(layout: TiledLayout) -> Any:
    """A function (sums, a block's dots, activations, unpacked codes, its number) -> the sums with the block's products.

    Minima of groups of several blocks are added once, after the last one, as `kernel` does.
    """
    groups, blocks, at = layout.groups, layout.super // STEP, Places(layout, N)
    x_bytes, x_scales, x_sums = at.x_bytes, at.x_scales, at.x_sums
    code_bytes, unpacked = CODE_BYTES, unpacked_bytes(layout)
    together = layout.minima is not None and layout.super > STEP and not layout.two_level
    kind, minima_at = BIASED if layout.minima and not together else PLAIN, CODE_BYTES + groups * ROW_BYTES
    minima_at = minima_at if layout.minima else CODE_BYTES  # what PLAIN does not read

    def add_block(acc, dots, x, codes, block):
        tokens, here = x + block * x_bytes, codes + block * unpacked
        acc = fma_made_dots(acc, dots, groups, here + code_bytes, here + minima_at, tokens + x_scales, kind)
        if together and block % blocks == blocks - 1:
            first = x + (block - blocks + 1) * x_bytes + x_sums
            acc = fma_sums(acc, load_f32x16(here + minima_at), first, x_bytes, blocks)
        return acc

    return inner(add_block, layout, inline="always")
