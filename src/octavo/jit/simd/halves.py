# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Values of weights that are stored as numbers of codebook entries, whose halves are looked up 64 at a time: VBMI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.simd.codes import shift
from octavo.jit.simd.emit import (
    I1,
    I8,
    I16,
    I32,
    I64,
    V_I32,
    V_U8,
    Block,
    call_llvm,
    fill,
    i64,
    literal,
    load_at,
    store_at,
    u8x64,
)
from octavo.jit.simd.grids import load_nibbles


@dataclass(frozen=True)
class HalvesForm:
    """What looking up halves of points is compiled for.

    width        values of a point, 8 or 4
    more         bits of a number above eight: 0, 1, 2 or 4
    own          this many of the lowest bits are the first half's only; the last half has those from bit 8 on instead
    first, last  bits that say which 64 entries of its table a half is among; the six lowest say which of these it is
    marked       each value has a mark
    across       vector 4 i + k has value k of points 4 i to 4 i + 3, instead of all values of a point; of 4 values
    """

    width: int
    more: int
    own: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    marked: bool
    across: bool = False


def load_halves_of(form: HalvesForm) -> Any:
    """The intrinsic for 16 rows x 32 values."""
    result, wide = Block(u8x64, 8), form.width == 8

    @intrinsic
    def load_halves(ty, low, high, marks, tables):
        """8 vectors of what values stand for.

        low     address of the numbers' low eight bits: for each 16 values, or 32, four bytes for each of 16 rows
        high    address of the bits above them, side by side; of 128 numbers, of 8 from each 64 in turn
        marks   address of 64 bytes, where values are marked: bit j of a value's byte is its mark in vector j. With
                points of 4 values a point's byte has those of values 0 and 2 in its low half and of 1 and 3 in the
                other one: two bits for a row's first four points, then two for the others
        tables  address of tables of bytes: the codes of points' first halves, then of their last: two bits each of 8
                values, half a byte of 4; then what codes stand for, repeated to 64. Marks are the bit above a code of
                4 values; with 8 there are three such tables, for marks in bit 3, 4 or 5
        """

        def gen(c, b, s, a):
            low, high, marks, tables = a
            tables, halves = _in_memory(b, tables), []
            last = b.add(tables, i64(64 << len(form.first)))
            meanings = b.add(last, i64(64 << len(form.last)))
            for v, above in enumerate(_above(b, high, form)):
                bits = _Bits(b, load_at(b, low, V_U8, 64 * v), above)
                halves += [_look_up(b, tables, bits, form.first, 0), _look_up(b, last, bits, form.last, form.own)]
            if not wide:
                codes = _marked_fours(b, halves, load_at(b, marks, V_U8))
                vectors = _fours_across(b, codes) if form.across else _codes_of_fours(b, codes)
            else:
                vectors = _codes_of_eights(b, *halves)
            if wide and form.marked:
                return result.of(b, _marked(b, vectors, load_at(b, marks, V_U8), meanings))
            table = load_at(b, meanings, V_U8)
            return result.of(b, [_permute(b, table, codes) for codes in vectors])

        return result(*[types.intp] * 4), gen

    return load_halves


def _in_memory(b, address):
    """The address, of which nothing is known any more: what is read there takes no register for a whole loop."""
    return b.asm(ir.FunctionType(address.type, [address.type]), "", "=r,0", [address], True)


def _above(b, high, form):
    """For each 64 numbers the bits above eight: in bytes with junk above, as a mask where there is one, or None."""
    vectors, more = 8 // form.width, form.more
    if more == 0:
        return [None] * vectors
    if more * vectors == 1:
        return [b.bitcast(load_at(b, high, I64), ir.VectorType(I1, 64))]
    octets = b.zext(load_at(b, high, ir.VectorType(ir.IntType(8 * more * vectors), 8)), ir.VectorType(I64, 8))
    return [_bytes_from(b, octets, [more * (8 * v + i) for i in range(8)]) for v in range(vectors)]


class _Bits:
    """64 numbers: `low` bytes, and what is above them (see `_above`)."""

    def __init__(self, b, low, high):
        self.b, self.low, self.high = b, low, high

    def bit(self, i):
        """Whether bit i of each number is set."""
        b = self.b
        if i == 7:
            return b.icmp_signed("<", self.low, fill(V_U8, 0))
        if i >= 8 and self.high.type.element == I1:
            return self.high
        bytes_, place = (self.low, i) if i < 8 else (self.high, i - 8)
        return b.icmp_unsigned("!=", b.and_(bytes_, fill(V_U8, 1 << place)), fill(V_U8, 0))

    def lowest(self, own):
        """The low bits of numbers, `own` of them those from bit 8 on."""
        if not own:
            return self.low
        b, mask = self.b, (1 << own) - 1
        return b.or_(b.and_(self.low, fill(V_U8, 255 - mask)), b.and_(self.high, fill(V_U8, mask)))


def _look_up(b, table, bits, upper, own):
    """Bytes of a table, by the low six bits of numbers and by the bits `upper`."""
    numbers = bits.lowest(own)
    found = [_permute(b, load_at(b, table, V_U8, 64 * part), numbers) for part in range(1 << len(upper))]
    for i in upper:
        mask = bits.bit(i)
        found = [b.select(mask, odd, even) for even, odd in zip(found[::2], found[1::2], strict=True)]
    return found[0]


def _codes_of_eights(b, first, last):
    """Codes of 4 points of 8 values a row, two bits each, in the low bits of bytes: 8 vectors."""
    vectors = []
    for i in range(4):
        vectors += [_bits_of_words(b, half, [8 * i + 2 * k for k in range(4)]) for half in (first, last)]
    return vectors


def _marked_fours(b, halves, marks):
    """Halves of points of 4 values, two codes a byte, with the marks above these."""
    marked = []
    for i, codes in enumerate(halves):
        moved = b.and_(shift(b, marks, 3 - i), fill(V_U8, 0x88))
        marked.append(b.or_(b.and_(codes, fill(V_U8, 0x77)), moved))
    return marked


def _fours_across(b, halves):
    """Codes and marks in the low bits of bytes, a value of 4 points a row in each of 8 vectors."""
    return [shift(b, half, down) for half in halves for down in (0, -4)]


def _codes_of_fours(b, halves):
    """Codes and marks in the low bits of bytes, a point of each row in each of 8 vectors."""
    vectors, sixteen = [], fill(V_I32, 16)
    for v in range(2):
        first, last = (b.bitcast(half, V_I32) for half in halves[2 * v : 2 * v + 2])
        both = [
            b.or_(b.and_(first, fill(V_I32, 0xFFFF)), b.shl(last, sixteen)),
            b.or_(b.lshr(first, sixteen), b.and_(last, fill(V_I32, 0xFFFF0000))),
        ]  # points 0 and 1, then 2 and 3
        for codes in both:
            vectors += [_bits_of_words(b, codes, [8 * point + k for k in (0, 4, 16, 20)]) for point in range(2)]
    return vectors


def _marked(b, vectors, marks, meanings):
    """What codes of two bits and marks stand for."""
    values = []
    for j, codes in enumerate(vectors):
        up = 3 if j < 3 else -3 if j > 5 else 0  # move the three bits to bits 3 to 5
        moved = b.and_(shift(b, marks, up), fill(V_U8, 0xFC))
        table = load_at(b, meanings, V_U8, 64 * (j + up - 3))
        values.append(_permute(b, table, b.or_(b.and_(codes, fill(V_U8, 3)), moved)))
    return values


def _bits_of_words(b, words, first):
    """The eight bits from bit first[k] on as byte k of each 32-bit word."""
    return _bytes_from(b, words, [32 * i + bit for i in range(2) for bit in first])


def _bytes_from(b, words, first):
    """The eight bits from bit first[k] on as byte k of each 64-bit word."""
    name = "llvm.x86.avx512.pmultishift.qb.512"
    return call_llvm(b, name, V_U8, ir.Constant(V_U8, first * 8), b.bitcast(words, V_U8))


def _permute(b, table, numbers):
    """Bytes of a table of 64, by the low six bits of numbers."""
    return call_llvm(b, "llvm.x86.avx512.permvar.qi.512", V_U8, table, numbers)


@intrinsic(prefer_literal=True)
def lower_marked(ty, codes, small, others, groups, by):
    """Values of 4 points of 8 values a row, `by` less where a point is marked.

    small   address of 8 bytes for each group: the highest bit of each half is the mark of the group's first point
    others  address of two bytes for each group: a bit for each row, the mark of its second point. With one group all
            points have the mark of the first
    """
    count, less = literal(groups), fill(V_U8, literal(by))

    def gen(c, b, s, a):
        value, small, others = a[:3]
        masks = []
        for g in range(count):
            first = b.and_(load_nibbles(b, b.add(small, i64(8 * g))), fill(V_I32, 8))
            masks.append(b.icmp_unsigned("!=", first, fill(V_I32, 0)))
            if count > 1:
                masks.append(b.bitcast(load_at(b, others, I16, 2 * g), ir.VectorType(I1, 16)))
        for j in range(8):
            lower = b.select(masks[j // 2 % len(masks)], b.bitcast(less, V_I32), fill(V_I32, 0))
            lowered = b.sub(b.extract_value(value, j), b.bitcast(lower, V_U8))
            value = b.insert_value(value, lowered, j)
        return value

    return codes(codes, types.intp, types.intp, groups, by), gen


@intrinsic(prefer_literal=True)
def turn_blocks(ty, to, x, blocks, tokens, after):
    """Blocks of activations as `load_halves_of` wants them across: of each 16 codes 0, 4, 8, 12, then 1, 5 and so on.

    A block has 32 codes of each token and `after` bytes of each, which stay. Blocks and tokens are constants.
    """
    count, n, rest = literal(blocks), literal(tokens), literal(tokens) * literal(after)
    order = [16 * (i // 16) + i % 4 * 4 + i % 16 // 4 for i in range(32)]

    def gen(c, b, s, a):
        to, x = a[:2]
        for block in range(count):
            at = block * (32 * n + rest)
            for t in range(n):
                codes = load_at(b, x, ir.VectorType(I8, 32), at + 32 * t)
                turned = b.shuffle_vector(codes, codes, ir.Constant(ir.VectorType(I32, 32), order))
                store_at(b, to, turned, at + 32 * t)
            store_at(b, to, load_at(b, x, ir.VectorType(I64, rest // 8), at + 32 * n), at + 32 * n)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, blocks, tokens, after), gen
