# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Intel's matrix tiles (AMX): products of 16 rows by 16 columns in one instruction.

    configure(64)                                          # tiles 0 to 3: sums; 4, 5: tokens; 6, 7: weights
    zero(0)
    load(4, x, 64); load(6, w, 64); dot_signed(0, 4, 6)    # sums [16, 16] += x [16, 64] @ w [16, 64].T
    store(0, sums, 64)
    release()

Tiles are registers that an instruction names by number, so a kernel owns all eight, and names them in one function,
between `configure` and `release`. A tile of weights holds four bytes of each of 16 rows side by side, as vectors of
codes do. `host_cpu.has_tiles` says where there are tiles; instructions by Intel's manual, volume 2, chapter 3.
"""

from __future__ import annotations

import struct

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.simd.emit import I8, VOID, call_llvm, i64, literal, pointer_at

SUMS, TOKENS, WEIGHTS = (0, 1, 2, 3), (4, 5), (6, 7)
"""Numbers of tiles."""


def instruction(b, name, tiles, *values):
    """Emit an instruction on tiles; the code of a tile's number is a constant."""
    call_llvm(b, f"llvm.x86.{name}", VOID, *(ir.Constant(I8, tile) for tile in tiles), *values)


def shapes(depth):
    """Rows and bytes of a row of each tile, where a dot product is of `depth` bytes, a multiple of 4 up to 64."""
    return [(16, 64)] * len(SUMS) + [(16, depth)] * len(TOKENS) + [(depth // 4, 64)] * len(WEIGHTS)


@intrinsic(prefer_literal=True)
def configure(ty, depth):
    """Make the tiles, for dot products of `depth` bytes, a constant."""
    rows, row_bytes = zip(*shapes(literal(depth)), strict=True)
    palette = struct.pack("<B15x8H16x8B8x", 1, *row_bytes, *rows)

    def gen(c, b, s, a):
        kind = ir.ArrayType(I8, len(palette))
        with b.goto_entry_block():
            memory = b.alloca(kind)
            memory.align = 64
        b.store(ir.Constant(kind, list(palette)), memory)
        instruction(b, "ldtilecfg", (), b.bitcast(memory, I8.as_pointer()))
        return c.get_dummy_value()

    return types.void(depth), gen


@intrinsic
def release(ty):
    """Give the tiles back: the system need not save them any more."""

    def gen(c, b, s, a):
        instruction(b, "tilerelease", ())
        return c.get_dummy_value()

    return types.void(), gen


@intrinsic(prefer_literal=True)
def zero(ty, tile):
    """Fill a tile with zeros."""
    number = literal(tile)

    def gen(c, b, s, a):
        instruction(b, "tilezero", (number,))
        return c.get_dummy_value()

    return types.void(tile), gen


def _memory_op(name, what):
    @intrinsic(prefer_literal=True)
    def op(ty, tile, address, stride):
        number = literal(tile)

        def gen(c, b, s, a):
            instruction(b, name, (number,), pointer_at(b, a[1], I8), a[2])
            return c.get_dummy_value()

        return types.void(tile, types.intp, types.intp), gen

    op.__doc__ = f"""{what} a tile's rows, `stride` bytes apart from the address on."""
    return op


load, store = _memory_op("tileloadd64", "Load"), _memory_op("tilestored64", "Store")


def _dot_op(name, doc):
    @intrinsic(prefer_literal=True)
    def dot(ty, sums, tokens, weights):
        numbers = tuple(map(literal, (sums, tokens, weights)))

        def gen(c, b, s, a):
            instruction(b, name, numbers)
            return c.get_dummy_value()

        return types.void(sums, tokens, weights), gen

    dot.__doc__ = f"""Add the dot products of {doc}."""
    return dot


SIGNED, UNSIGNED, BF16 = "tdpbssd", "tdpbsud", "tdpbf16ps"
dot_signed = _dot_op(SIGNED, "a tile of signed bytes and one of signed bytes to a tile of int32")
dot_unsigned = _dot_op(UNSIGNED, "a tile of signed bytes and one of unsigned bytes to a tile of int32")


def _square(tokens, panels):
    """Tiles of tokens and of weights, two of each at most, and for each pair its sums' tile."""
    m, n = literal(tokens), literal(panels)
    return m, n, [(i, j, SUMS[i * n + j]) for i in range(m) for j in range(n)]


def _move_sums(b, name, sums, places, square):
    of_tile, of_panel, row_bytes = map(literal, places)
    for i, j, tile in square:
        at = pointer_at(b, sums, I8, i * of_tile + j * of_panel)
        instruction(b, name, (tile,), at, i64(row_bytes))


@intrinsic(prefer_literal=True)
def begin_sums(ty, sums, of_tile, of_panel, row_bytes, afresh, tokens, panels):
    """Make the sums' tiles of `tokens` times `panels` (constants, 1 or 2) 0 if `afresh`, else what lies at `sums`.

    of_tile, of_panel  constants: bytes from one tile's sums to the next one's, and from one panel's to the next one's
    row_bytes          from a row of sums to the next one
    """
    _, _, square = _square(tokens, panels)

    def gen(c, b, s, a):
        with b.if_else(c.is_true(b, s.args[4], a[4])) as (then, otherwise):
            with then:
                for *_, tile in square:
                    instruction(b, "tilezero", (tile,))
            with otherwise:
                _move_sums(b, "tileloadd64", a[0], (of_tile, of_panel, row_bytes), square)
        return c.get_dummy_value()

    return types.void(types.intp, of_tile, of_panel, row_bytes, afresh, tokens, panels), gen


@intrinsic(prefer_literal=True)
def end_sums(ty, sums, of_tile, of_panel, row_bytes, tokens, panels):
    """Store what `begin_sums` has begun."""
    _, _, square = _square(tokens, panels)

    def gen(c, b, s, a):
        _move_sums(b, "tilestored64", a[0], (of_tile, of_panel, row_bytes), square)
        return c.get_dummy_value()

    return types.void(types.intp, of_tile, of_panel, row_bytes, tokens, panels), gen


def add_products(name, *, anew=True):
    """A function that adds the products of tiles of tokens, `x_stride` bytes apart from x on, and of weights.

    Each tile is loaded once, and two of each make four products: a byte from the cache is used 32 times. Weights are
    those of the products before, if not `anew`.
    """

    @intrinsic(prefer_literal=True)
    def products(ty, x, x_stride, w, w_stride, tokens, panels):
        m, n, square = _square(tokens, panels)

        def gen(c, b, s, a):
            for first, tiles, count in ((0, TOKENS, m), (2, WEIGHTS, n if anew else 0)):
                for i in range(count):
                    address = b.add(a[first], a[first + 1]) if i else a[first]
                    instruction(b, "tileloadd64", (tiles[i],), pointer_at(b, address, I8), i64(64))
            for i, j, tile in square:
                instruction(b, name, (tile, TOKENS[i], WEIGHTS[j]))
            return c.get_dummy_value()

        return types.void(*[types.intp] * 4, tokens, panels), gen

    return products


add_bf16, add_unsigned, add_bf16_again = add_products(BF16), add_products(UNSIGNED), add_products(BF16, anew=False)
