# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""32 codes of one row on their way from a format's block to the block of 16 rows that `load_codes` reads."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.simd.emit import I32, fill, literal, load_at, repeat, store_at

V4 = ir.VectorType(I32, 4)
PIECE_BYTES = 16
"""Of uint32 offset, right, mask, left."""


@intrinsic(prefer_literal=True)
def move_code_row(ty, to, source, pieces, base, bits, n_pieces, runs):
    """Pack 8 words of four codes into `bits` words, 64 bytes apart.

    A word is the OR of ((4 bytes at source + offset) >> right & mask) << left of each of its `n_pieces` pieces, XOR
    `base`. `runs`: words 0 to 3 have the pieces of 16 consecutive bytes, and so have 4 to 7. The last three are
    constants.
    """
    width, count, in_runs = map(literal, (bits, n_pieces, runs))

    def gen(c, b, s, a):
        read = _run if in_runs else _apart
        halves = [b.xor(read(b, *a[1:3], 4 * half, count), repeat(b, b.trunc(a[3], I32), 4)) for half in (0, 1)]
        for i, word in enumerate(_packed(b, *halves, width)):
            store_at(b, a[0], word, 64 * i)
        return c.get_dummy_value()

    return types.void(*[types.intp] * 4, bits, n_pieces, runs), gen


def _run(b, source, pieces, first, count):
    """Four words side by side."""
    return _gathered(b, source, pieces, first, count, V4, lambda x: repeat(b, x, 4))


def _apart(b, source, pieces, first, count):
    """Four words, each from its own place."""
    value = ir.Constant(V4, None)
    for lane in range(4):
        word = _gathered(b, source, pieces, first + lane, count, I32, lambda x: x)
        value = b.insert_element(value, word, ir.Constant(I32, lane))
    return value


def _gathered(b, source, pieces, word, count, kind, each):
    value = ir.Constant(kind, None)
    for i in range(count):
        at = (word * count + i) * PIECE_BYTES
        offset, *others = (load_at(b, pieces, I32, at + 4 * field) for field in range(4))
        right, mask, left = map(each, others)
        found = load_at(b, b.add(source, b.zext(offset, source.type)), kind)
        value = b.or_(value, b.shl(b.and_(b.lshr(found, right), mask), left))
    return value


def _packed(b, first, last, bits):
    """The words that `load_codes` takes apart, of twice four words of codes."""
    low = {3: 2, 5: 4}.get(bits, bits)
    if low == 8:
        return _lanes(b, first) + _lanes(b, last)
    if low == 6:
        return [word for half in (first, last) for word in _six_bits(b, half)]
    mask = _fill(0x03030303 if low == 2 else 0x0F0F0F0F)
    words = _lanes(b, b.or_(b.and_(first, mask), b.shl(b.and_(last, mask), _fill(4))))
    if low == 2:
        words = [b.or_(words[i], b.shl(words[i + 2], ir.Constant(I32, 2))) for i in (0, 1)]
    if bits != low:
        high = [b.and_(b.lshr(half, _fill(low)), _fill(0x01010101)) for half in (first, last)]
        bit = [b.shl(half, ir.Constant(V4, [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3])) for i, half in enumerate(high)]
        words.append(_joined(b, b.or_(*bit)))
    return words


def _six_bits(b, half):
    *words, last = _lanes(b, half)
    places = [b.and_(b.lshr(last, ir.Constant(I32, 4 - 2 * i)), ir.Constant(I32, 0x03030303)) for i in range(3)]
    return [b.or_(b.shl(word, ir.Constant(I32, 2)), place) for word, place in zip(words, places, strict=True)]


def _lanes(b, vector):
    return [b.extract_element(vector, ir.Constant(I32, i)) for i in range(4)]


def _joined(b, vector):
    one, two, three, four = _lanes(b, vector)
    return b.or_(b.or_(one, two), b.or_(three, four))


def _fill(value):
    return fill(V4, value)
