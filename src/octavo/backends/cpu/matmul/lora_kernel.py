# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What adapters add to products: y += B A x, where each token has an adapter of its own, or none.

Algorithm: grouped GEMM of two steps (Punica's SGMV, arXiv 2310.18547): tokens are grouped by adapter, and the factors
    of one are read once for all its tokens.
Tile:
    h [T, P * R]   task: a chunk of tokens, an adapter, a product, 16 rows of A: | 16 | <- A [16, K] x, token by token
    y [T, N...]    task: BLOCKS times 16 columns: += B [16, r] h, adapter by adapter
Bound: bytes of the factors; not measured by itself.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.lora`

Tokens at equal distances share a tile. Sums of a token are those that `float_kernel` has, whatever is beside it.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.float_kernel import WIDTH, Kind, sums_function
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add_blocks,
    i32_pointer,
    i64_pointer,
    load_block,
    load_block_masked,
    store_block,
    store_block_masked,
)

FACTORS = record("a b a_kind b_kind rank")
"""Where A [rank, K] and B [N, rank] of an adapter lie, 16 rows side by side, and their numbers in KINDS; 0 for none."""
KINDS: tuple[Kind, ...] = ("f32", "f16", "bf16")
CHUNK, BLOCKS, MOST = 64, 8, 8
"""Tokens of a task, blocks of 16 columns of one, and tokens of a tile."""
LORA = record("x x_stride h h_stride y y_stride", "rows starts slots", "factors parts all_parts tiles k sizes")
"""rows, starts  tokens by adapter, int32, and where those of each begin
factors        [slots, all_parts] of FACTORS, of which `parts` from the first on are computed
tiles          of 16 ranks that h has for each part
sizes          columns of each part, int64
"""


def _run() -> Any:
    """A function (rows, at, last) -> how many tokens from `at` on share a tile: MOST, 2 or 1."""
    most = MOST

    def run(rows, at, last):
        if at + most <= last:
            step, even = rows[at + 1] - rows[at], True
            for i in range(at + 1, at + most - 1):
                even = even and rows[i + 1] - rows[i] == step
            if even:
                return most
        return 2 if at + 2 <= last else 1

    return inner(run)


def _of_tiles(of_tile: Any, kind: Kind) -> Any:
    """A function (w, x, x_stride, h, h_stride, y, y_stride, rows, first, last, k, columns) that does all tiles.

    of_tile  makes what does one, of `kind` and n tokens: (w, x, x_step, h, h_stride, y, y_step, k, columns)
    """
    many, two, one, run, most = of_tile(kind, MOST), of_tile(kind, 2), of_tile(kind, 1), _run(), MOST

    def of_tiles(w, x, x_stride, h, h_stride, y, y_stride, rows, first, last, k, columns):
        at = first
        while at < last:
            n, token = run(rows, at, last), rows[at]
            step = rows[at + 1] - token if n > 1 else 0
            tile_x, tile_h, tile_y = x + token * x_stride, h + at * h_stride, y + token * y_stride
            if n == most:
                many(w, tile_x, step * x_stride, tile_h, h_stride, tile_y, step * y_stride, k, columns)
            elif n == 2:
                two(w, tile_x, step * x_stride, tile_h, h_stride, tile_y, step * y_stride, k, columns)
            else:
                one(w, tile_x, 0, tile_h, h_stride, tile_y, 0, k, columns)
            at += n

    return inner(of_tiles, kind, of_tile.__name__)


def _down(kind: Kind, n: int) -> Any:
    sums = sums_function(kind, n)

    def down(w, x, x_step, h, h_stride, y, y_step, k, columns):
        store_block(h, h_stride, sums(w, x, x_step, k))  # n x [16]

    return inner(down, kind, n)


def _up(kind: Kind, n: int) -> Any:
    sums, width = sums_function(kind, n, "always"), 16 * WIDTH[kind]

    def up(w, x, x_step, h, h_stride, y, y_step, k, columns):
        for _block in range(columns // 16):
            acc = add_blocks(sums(w, h, h_stride, k), load_block(y, y_step, n))  # n x [16]
            store_block(y, y_step, acc)
            w, y = w + k * width, y + 64
        if columns % 16:
            acc = add_blocks(sums(w, h, h_stride, k), load_block_masked(y, y_step, columns % 16, n))
            store_block_masked(y, y_step, columns % 16, acc)

    return inner(up, kind, n)


@kernels(LORA)
def lora_down_kernel() -> Any:
    """h [T, parts * 16 * tiles] = A x, in the order of `rows`. Task: chunk, slot, part and tile."""
    f32, f16, bf16 = (_of_tiles(_down, kind) for kind in KINDS)
    factors_at, factors_bytes, chunk_size = FACTORS.at, FACTORS.nbytes, CHUNK

    def lora_down(a, task):
        tile, rest = task % a.tiles, task // a.tiles
        part, rest = rest % a.parts, rest // a.parts
        slot, chunk = rest % a.slots, rest // a.slots
        f = factors_at(a.factors + (slot * a.all_parts + part) * factors_bytes)
        starts, rows = i32_pointer(a.starts), i32_pointer(a.rows)
        first, last = max(starts[slot], chunk * chunk_size), min(starts[slot + 1], (chunk + 1) * chunk_size)
        if tile * 16 >= f.rank or first >= last:
            return
        h = a.h + (part * a.tiles + tile) * 64
        if f.a_kind == 0:
            f32(f.a + tile * a.k * 64, a.x, a.x_stride, h, a.h_stride, 0, 0, rows, first, last, a.k, 16)
        elif f.a_kind == 1:
            f16(f.a + tile * a.k * 32, a.x, a.x_stride, h, a.h_stride, 0, 0, rows, first, last, a.k, 16)
        else:
            bf16(f.a + tile * a.k * 32, a.x, a.x_stride, h, a.h_stride, 0, 0, rows, first, last, a.k, 16)

    return lora_down


@kernels(LORA)
def lora_up_kernel() -> Any:
    """y [T, N...] += B h. Task: BLOCKS blocks of 16 columns of a part, all adapters."""
    f32, f16, bf16 = (_of_tiles(_up, kind) for kind in KINDS)
    factors_at, factors_bytes, width = FACTORS.at, FACTORS.nbytes, 16 * BLOCKS

    def lora_up(a, task):
        sizes, starts, rows = i64_pointer(a.sizes), i32_pointer(a.starts), i32_pointer(a.rows)
        part, column, left = 0, 0, task
        while left >= (sizes[part] + width - 1) // width:
            left -= (sizes[part] + width - 1) // width
            column += sizes[part]
            part += 1
        for slot in range(a.slots):
            f = factors_at(a.factors + (slot * a.all_parts + part) * factors_bytes)
            first, last = starts[slot], starts[slot + 1]
            if f.rank == 0 or first >= last:
                continue
            h, y, done = a.h + part * a.tiles * 64, a.y + (column + left * width) * 4, left * width
            columns, tile = min(sizes[part] - done, width), done * f.rank
            if f.b_kind == 0:
                f32(f.b + tile * 4, 0, 0, h, a.h_stride, y, a.y_stride, rows, first, last, f.rank, columns)
            elif f.b_kind == 1:
                f16(f.b + tile * 2, 0, 0, h, a.h_stride, y, a.y_stride, rows, first, last, f.rank, columns)
            else:
                bf16(f.b + tile * 2, 0, 0, h, a.h_stride, y, a.y_stride, rows, first, last, f.rank, columns)

    return lora_up
