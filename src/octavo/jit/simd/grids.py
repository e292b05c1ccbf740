# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Codes of weights that are stored as numbers of codebook entries; 16 rows x 32 k, as `load_codes` has them."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host
from octavo.jit.simd.emit import (
    I1,
    I8,
    I32,
    I64,
    V_I32,
    V_U8,
    Block,
    call_llvm,
    f32x16,
    fill,
    i64,
    join_lanes,
    literal,
    load_at,
    pointer_at,
    to_float,
    u8x64,
)


@intrinsic(prefer_literal=True)
def load_points(ty, low, high, points, width, more):
    """8 vectors of codes from numbers of points of `width` values, 8 or 4.

    low     address of the numbers' low eight bits: for each 16 values, or 32, four bytes for each of 16 rows
    high    address of the `more` bits above them, 0, 1, 2 or 4; for each 64 bytes at `low` those of the first ones
            lie in the lowest bits of 8 `more` bytes, those of as many others above them, and so on
    points  address of a word for each point: 4 codes in its bytes; of 8 codes the last four in their upper halves
    """
    wide, planes = literal(width) == 8, literal(more)
    result = Block(u8x64, 8)

    def gen(c, b, s, a):
        low, high, points = a[:3]
        vectors = []
        for v in range(1 if wide else 2):
            numbers = load_at(b, low, V_I32, 64 * v)
            above = b.bitcast(upper_bits(b, high, v, planes), V_I32) if planes else None
            for i in range(4):
                word = _gather(b, points, _number(b, numbers, above, i))
                if wide:
                    upper = b.lshr(word, fill(V_I32, 4))
                    vectors += [b.and_(half, fill(V_I32, 0x0F0F0F0F)) for half in (word, upper)]
                else:
                    vectors.append(word)
        return result.of(b, [b.bitcast(x, V_U8) for x in vectors])

    return result(types.intp, types.intp, types.intp, width, more), gen


def upper_bits(b, high, v, more):
    """The bits above eight of the v-th 64 numbers of a block, each in a byte; see `load_points`."""
    words = load_at(b, high, ir.VectorType(I64, more), 8 * more * v)
    every = b.shuffle_vector(words, words, ir.Constant(ir.VectorType(I32, 8), [i % more for i in range(8)]))
    moved = b.lshr(every, ir.Constant(every.type, [i // more * more for i in range(8)]))
    return b.and_(b.bitcast(moved, V_U8), fill(V_U8, (1 << more) - 1))


def _number(b, low, above, i):
    """Number i of each row."""
    number = b.and_(b.lshr(low, fill(V_I32, 8 * i)), fill(V_I32, 0xFF))
    if above is None:
        return number
    moved = b.shl(above, fill(V_I32, 8)) if i == 0 else b.lshr(above, fill(V_I32, 8 * i - 8))
    return b.or_(number, b.and_(moved, fill(V_I32, 0xFF00)))


def _gather(b, address, numbers):
    """The words at `address` + 4 * number, for 16 lanes. AVX2's own instruction takes longer than a load for each."""
    if host.level() == "avx512vnni":
        base = pointer_at(b, address, I8)
        every, scale = ir.Constant(ir.VectorType(I1, 16), [1] * 16), ir.Constant(I32, 4)
        name = "llvm.x86.avx512.mask.gather.dpi.512"
        return call_llvm(b, name, V_I32, fill(V_I32, 0), base, numbers, every, scale)
    words = ir.Constant(V_I32, ir.Undefined)
    for lane in range(16):
        at = b.zext(b.extract_element(numbers, ir.Constant(I32, lane)), i64(0).type)
        word = load_at(b, b.add(address, b.shl(at, i64(2))), I32)
        words = b.insert_element(words, word, ir.Constant(I32, lane))
    return words


@intrinsic(prefer_literal=True)
def mark_codes(ty, codes, address, bit):
    """Codes of a block with this bit set where a value is marked: bit j of the bytes at `address` for vector j."""
    place = literal(bit)

    def gen(c, b, s, a):
        marks, mask, value = load_at(b, a[1], V_I32), fill(V_I32, 0x01010101 << place), a[0]
        for j in range(8):
            amount = fill(V_I32, abs(place - j))
            moved = b.shl(marks, amount) if place > j else b.lshr(marks, amount)
            marked = b.bitcast(b.and_(moved, mask), V_U8)
            value = b.insert_value(value, b.or_(b.extract_value(value, j), marked), j)
        return value

    return codes(codes, types.intp, bit), gen


@intrinsic(prefer_literal=True)
def load_nibbles_x16(ty, address, bits):
    """16 numbers of 4 or 3 bits as floats, in the low halves of 8 bytes, then in the high ones."""
    width = literal(bits)
    return f32x16(types.intp, bits), lambda c, b, s, a: nibbles_to_float(b, a[0], 0, width)


def nibbles_to_float(b, address, offset=0, bits=4):
    """`load_nibbles_x16`, emitted, not called."""
    numbers = b.and_(load_nibbles(b, b.add(address, i64(offset))), fill(V_I32, (1 << bits) - 1))
    return to_float(b, numbers)


def load_nibbles(b, address):
    """The low halves of 8 bytes, then their high ones, as numbers of 32 bits, with junk above four bits."""
    bytes_ = b.zext(load_at(b, address, ir.VectorType(I8, 8)), ir.VectorType(I32, 8))
    return join_lanes(b, [bytes_, b.lshr(bytes_, fill(bytes_.type, 4))])
