# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of codes of eight bits and int8 activations, both widened to 16 bits before: AVX2.

There products of bytes are summed by pairs in 16 bits, which two of 255 * 127 overflow.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.simd.dots import FEW, PRELOADED, dot_begins, floats_of, fma_total, in_order, pair_products
from octavo.jit.simd.emit import I8, I16, I32, V_I16, fill, i64, literal, load_at, repeat, store_at


@intrinsic
def store_words(ty, address, codes):
    """Codes of a block as 16 bits, of each vector its even bytes, then its odd ones."""

    def gen(c, b, s, a):
        for j in range(8):
            even, odd = _halves(b, b.extract_value(a[1], j), b.lshr)
            store_at(b, a[0], even, 128 * j)
            store_at(b, a[0], odd, 128 * j + 64)
        return c.get_dummy_value()

    return types.void(types.intp, codes), gen


@intrinsic
def store_token_words(ty, address, codes):
    """32 signed bytes at `codes` as 16 bits: the even ones, then the odd ones."""

    def gen(c, b, s, a):
        even, odd = _halves(b, load_at(b, a[1], ir.VectorType(I8, 32)), b.ashr)
        store_at(b, a[0], even)
        store_at(b, a[0], odd, 32)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp), gen


def _halves(b, bytes_, shift):
    """The even and the odd ones of bytes, as 16 bits; `shift` is b.ashr, or b.lshr for unsigned bytes."""
    words = b.bitcast(bytes_, ir.VectorType(I16, bytes_.type.count // 2))
    eight = fill(words.type, 8)
    return shift(b.shl(words, eight), eight), shift(words, eight)


@intrinsic(prefer_literal=True)
def fma_word_dots(ty, acc, codes, scale, bias, x, at, kind, offset, most):
    """`fma_dots` of a block of codes, or of codes that `store_words` has put at the address `codes`.

    24 n bytes after the scales, at x + at, lies what `store_token_words` made of each token's codes.
    """
    mode, shift = literal(kind), 8 - literal(offset).bit_length()

    def gen(c, b, s, a):
        acc, codes, scale, bias, x, at = a[:6]
        n = s.args[0].n
        d_at = b.add(x, at)
        begins = dot_begins(b, d_at, n, 12, shift if mode == PRELOADED else None)
        for t, total in enumerate(_dots(b, list(begins), _parts(b, s.args[1], codes), b.add(d_at, i64(24 * n)))):
            factor, more = floats_of(b, s.args[2], scale), floats_of(b, s.args[3], bias)
            acc = b.insert_value(acc, fma_total(b, b.extract_value(acc, t), total, factor, more, d_at, n, t, mode), t)
        return acc

    return acc(acc, codes, scale, bias, types.intp, types.intp, kind, offset, most), gen


def _parts(b, kind, codes):
    """Of each vector of codes the even bytes, then the odd ones, as 16 bits; made where they are needed, not before."""
    for part in range(16):
        if isinstance(kind, types.Integer):
            yield load_at(b, codes, V_I16, 64 * part)
        else:
            yield _halves(b, b.extract_value(codes, part // 2), b.lshr)[part % 2]


def _dots(b, totals, parts, words):
    """Totals and the dots of codes with each token's words."""
    for i, part in enumerate(parts):
        place = 32 * (i % 2) + 4 * (i // 2)
        for t, total in enumerate(totals):
            two = b.bitcast(repeat(b, load_at(b, words, I32, 64 * t + place)), V_I16)
            totals[t] = b.add(total, pair_products(b, part, two))
        totals = in_order(b, totals) if len(totals) > FEW else totals
    return totals
