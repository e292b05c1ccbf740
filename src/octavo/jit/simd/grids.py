"""Codes of weights that are stored as numbers of points of a grid; 16 rows x 32 k, as `load_codes` has them."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host
from octavo.jit.simd.codes import shift
from octavo.jit.simd.emit import (
    I1,
    I8,
    I32,
    V_F32,
    V_I32,
    V_U8,
    Block,
    call_llvm,
    f32x16,
    fill,
    i64,
    literal,
    load_at,
    pointer_at,
    repeat,
    u8x64,
)


@intrinsic(prefer_literal=True)
def load_points(ty, low, high, block, points, width, more):
    """8 vectors of codes from numbers of points of `width` values, 8 or 4.

    low     address of the numbers' low eight bits: for each 16 values, or 32, four bytes for each of 16 rows
    high    address of what is above them, `more` planes for each 64 bytes at `low`: of byte i of a row's word, bit
            `block` belongs to number i
    points  address of a word for each point: 4 codes in its bytes; of 8 codes the last four in their upper halves
    """
    wide, planes = literal(width) == 8, literal(more)
    result = Block(u8x64, 8)

    def gen(c, b, s, a):
        low, high, block, points = a[:4]
        amount = repeat(b, b.trunc(block, I32))
        vectors = []
        for v in range(1 if wide else 2):
            numbers = load_at(b, low, V_I32, 64 * v)
            above = _above(b, high, amount, [64 * (v * planes + p) for p in range(planes)])
            for i in range(4):
                word = _gather(b, points, _number(b, numbers, above, i))
                if wide:
                    upper = b.lshr(word, fill(V_I32, 4))
                    vectors += [b.and_(half, fill(V_I32, 0x0F0F0F0F)) for half in (word, upper)]
                else:
                    vectors.append(word)
        return result.of(b, [b.bitcast(x, V_U8) for x in vectors])

    return result(types.intp, types.intp, types.intp, types.intp, width, more), gen


@intrinsic(prefer_literal=True)
def load_marked_points(ty, low, high, block, marks, tables, width, more):
    """8 vectors of what values stand for, from numbers of points as `load_points` has them and from marks: VBMI.

    marks   address of 64 bytes: bit j of a value's byte is its mark in vector j
    tables  address of tables of bytes: the sizes of points' first halves, then of their last: two bits each of 8
            values, half a byte of 4; then what values stand for, three times 64: by the size in the low bits, and
            the mark in bit 3, 4 or 5
    """
    wide, planes = literal(width) == 8, literal(more)
    result, count = Block(u8x64, 8), 256 << planes

    def gen(c, b, s, a):
        low, high, block, marks, tables = a[:5]
        meanings = b.add(tables, i64(2 * count))
        tables = _in_memory(b, tables)
        bit, vectors = repeat(b, b.shl(ir.Constant(I8, 1), b.trunc(block, I8)), 64), []
        for v in range(1 if wide else 2):
            numbers = load_at(b, low, V_U8, 64 * v)
            above = [load_at(b, high, V_U8, 64 * (v * planes + p)) for p in range(planes)]
            bits = [(numbers, fill(V_U8, 64)), *((plane, bit) for plane in above)]
            chosen = [b.icmp_unsigned("!=", b.and_(x, y), fill(V_U8, 0)) for x, y in bits]
            chosen.insert(1, b.icmp_signed("<", numbers, fill(V_U8, 0)))
            halves = [_look_up_64s(b, b.add(tables, i64(count * i)), count // 64, numbers, chosen) for i in (0, 1)]
            vectors += _sizes_of_eights(b, *halves) if wide else _sizes_of_fours(b, *halves)
        of_marks = load_at(b, marks, V_U8)
        size_bits = fill(V_U8, 3 if wide else 7)
        for j, sizes in enumerate(vectors):
            up = 3 if j < 3 else -3 if j > 5 else 0  # to bits 3 to 5
            moved = b.and_(shift(b, of_marks, up), b.not_(size_bits))
            table = load_at(b, meanings, V_U8, 64 * (j + up - 3))
            vectors[j] = _permute(b, table, b.or_(b.and_(sizes, size_bits), moved))
        return result.of(b, vectors)

    return result(*[types.intp] * 5, width, more), gen


def _in_memory(b, address):
    """The address, of which nothing is known any more: what is read there takes no register for a whole loop."""
    return b.asm(ir.FunctionType(address.type, [address.type]), "", "=r,0", [address], True)


def _sizes_of_eights(b, first, last):
    """Sizes of 4 points of 8 values a row, two bits each, in the low bits of bytes: 8 vectors."""
    vectors = []
    for i in range(4):
        vectors += [_bits_from(b, half, [8 * i + 2 * k for k in range(4)]) for half in (first, last)]
    return vectors


def _sizes_of_fours(b, first, last):
    """Sizes of 4 points of 4 values a row, half a byte each, in the low bits of bytes: 4 vectors."""
    first, last, sixteen = b.bitcast(first, V_I32), b.bitcast(last, V_I32), fill(V_I32, 16)
    both = [
        b.or_(b.and_(first, fill(V_I32, 0x7777)), b.shl(last, sixteen)),
        b.or_(b.lshr(first, sixteen), b.and_(last, fill(V_I32, 0x77770000))),
    ]  # of points 0 and 1, 2 and 3
    return [_bits_from(b, both[i // 2], [8 * (i % 2) + k for k in (0, 4, 16, 20)]) for i in range(4)]


def _bits_from(b, words, first):
    """The eight bits from bit first[k] on as byte k of each 32-bit word."""
    order = [32 * (lane // 4 % 2) + first[lane % 4] for lane in range(64)]
    name = "llvm.x86.avx512.pmultishift.qb.512"
    return call_llvm(b, name, V_U8, ir.Constant(V_U8, order), b.bitcast(words, V_U8))


def _permute(b, table, numbers):
    """Bytes of a table of 64, by the low six bits of numbers."""
    return call_llvm(b, "llvm.x86.avx512.permvar.qi.512", V_U8, table, numbers)


def _look_up_64s(b, table, parts, numbers, chosen):
    """Bytes of a table of `parts` x 64, by the low six bits of numbers and by masks of the bits above them."""
    found = [_permute(b, load_at(b, table, V_U8, 64 * part), numbers) for part in range(parts)]
    for mask in chosen:
        found = [b.select(mask, odd, even) for even, odd in zip(found[::2], found[1::2], strict=True)]
    return found[0]


def _above(b, high, shift, places):
    """Bytes of the upper bits of four numbers a row, or None."""
    above = None
    for p, place in enumerate(places):
        bit = b.and_(b.lshr(load_at(b, high, V_I32, place), shift), fill(V_I32, 0x01010101))
        bit = b.shl(bit, fill(V_I32, p))
        above = bit if above is None else b.or_(above, bit)
    return above


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


@intrinsic
def load_odd_x16(ty, address):
    """2 s + 1 as floats, of 16 numbers s of four bits in 8 bytes, the low bits first."""

    def gen(c, b, s, a):
        pairs = load_at(b, a[0], ir.VectorType(I8, 8))
        twice = b.shuffle_vector(pairs, pairs, ir.Constant(ir.VectorType(I32, 16), [i // 2 for i in range(16)]))
        halves = b.lshr(b.zext(twice, V_I32), ir.Constant(V_I32, [0, 4] * 8))
        doubled = b.shl(b.and_(halves, fill(V_I32, 15)), fill(V_I32, 1))
        return b.sitofp(b.or_(doubled, fill(V_I32, 1)), V_F32)

    return f32x16(types.intp), gen
