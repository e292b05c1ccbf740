"""Packed fields of the formats with a codebook: indices of entries, signs and scales, and back.

A scale of s bits is an odd number, 2 s + 1. Functions take fields [..., blocks, count] and return `Indexed` whose last
axes run over all blocks; those that are named pack_* are the inverse.
"""

from __future__ import annotations

import numpy as np

from octavo.formats.array_like import contiguous
from octavo.formats.codebook import completed
from octavo.formats.packers import by_block, half_floats, join_bits
from octavo.formats.spec import U8, AnyArray, Fields, Indexed
from octavo.formats.unpackers import flat, scale, split_bits


def _odd(s: AnyArray) -> AnyArray:
    return (2 * s + 1).astype(np.int8)


def _stored(sc: AnyArray) -> U8:
    """The inverse of `_odd`."""
    s: U8 = (sc.view(np.uint8) >> np.uint8(1)).astype(np.uint8)
    return s


def _nibbles(packed: AnyArray) -> AnyArray:
    return _odd(split_bits(packed, run=1, bits=4))


def _fields_of_words(words: AnyArray, bits: int, count: int) -> AnyArray:
    """The lowest `count` fields of this many bits of each word: [..., n] -> [..., n * count]."""
    shifts = (bits * np.arange(count)).astype(words.dtype)
    fields: AnyArray = (words[..., None] >> shifts) & words.dtype.type((1 << bits) - 1)
    return flat(fields)


def _words_of_fields(fields: AnyArray, bits: int, count: int, dtype: str) -> AnyArray:
    """The inverse of `_fields_of_words`."""
    split = fields.reshape(*fields.shape[:-1], -1, count).astype(dtype)
    words: AnyArray = np.bitwise_or.reduce(split << (bits * np.arange(count)).astype(dtype), axis=-1)
    return words


def _halves_of_words(f: AnyArray) -> AnyArray:
    """32-bit words of a field of 16-bit ones or of bytes."""
    return contiguous(f).view("<u4")


def _signs_and_scale(words: AnyArray) -> tuple[U8, AnyArray]:
    """Words of four times 7 signs, then a scale of 4 bits."""
    return completed(_fields_of_words(words, 7, 4)), _odd(words >> np.uint32(28))


def _pack_signs_and_scale(signs: AnyArray, sc: AnyArray) -> AnyArray:
    words = _words_of_fields(signs & 127, 7, 4, "<u4")
    words |= _stored(sc).astype("<u4") << np.uint32(28)
    return words


def iq2_xxs(f: Fields) -> Indexed:
    words = _halves_of_words(f["qs"])
    index = contiguous(words[..., 0::2]).view(np.uint8)
    signs, sc = _signs_and_scale(words[..., 1::2])
    return Indexed(flat(index).astype(np.uint16), flat(signs), flat(sc), scale(f["d"]))


def pack_iq2_xxs(p: Indexed) -> Fields:
    index = by_block(p.index.astype(np.uint8), 32).view("<u4")
    words = np.stack([index, _pack_signs_and_scale(by_block(p.signs, 32), by_block(p.sc, 8))], axis=-1)
    return {"d": half_floats(p.d), "qs": flat(words).view("<u2")}


def iq2_xs(f: Fields) -> Indexed:
    qs = flat(f["qs"])
    return Indexed(qs & np.uint16(511), completed(qs >> np.uint16(9)), flat(_nibbles(f["scales"])), scale(f["d"]))


def pack_iq2_xs(p: Indexed) -> Fields:
    qs = p.index | ((p.signs & 127).astype(np.uint16) << np.uint16(9))
    return {
        "d": half_floats(p.d),
        "qs": by_block(qs, 32),
        "scales": join_bits(_stored(by_block(p.sc, 16)), run=1, bits=4),
    }


def _with_high(low: AnyArray, high: AnyArray) -> AnyArray:
    """Indices from their low eight bits and the bits above."""
    index: AnyArray = low.astype(np.uint16)
    index |= high.astype(np.uint16) << np.uint16(8)
    return flat(index)


def _low_and_high(index: AnyArray, *, bits: int) -> Fields:
    """The inverse of `_with_high`: low bytes, and `bits` bits above them."""
    return {"qs": index.astype(np.uint8), "qh": join_bits((index >> 8).astype(np.uint8), run=1, bits=bits)}


def iq2_s(f: Fields) -> Indexed:
    index = _with_high(f["qs"], split_bits(f["qh"], run=1, bits=2))
    return Indexed(index, flat(f["signs"]), flat(_nibbles(f["scales"])), scale(f["d"]))


def pack_iq2_s(p: Indexed) -> Fields:
    index = by_block(p.index, 32)
    return {
        "d": half_floats(p.d),
        **_low_and_high(index, bits=2),
        "signs": by_block(p.signs, 32),
        "scales": join_bits(_stored(by_block(p.sc, 16)), run=1, bits=4),
    }


def iq3_xxs(f: Fields) -> Indexed:
    signs, sc = _signs_and_scale(f["signs"])
    return Indexed(flat(f["qs"]).astype(np.uint16), flat(signs), flat(sc), scale(f["d"]))


def pack_iq3_xxs(p: Indexed) -> Fields:
    return {
        "d": half_floats(p.d),
        "qs": by_block(p.index.astype(np.uint8), 64),
        "signs": _pack_signs_and_scale(by_block(p.signs, 32), by_block(p.sc, 8)),
    }


def iq3_s(f: Fields) -> Indexed:
    index = _with_high(f["qs"], split_bits(f["qh"], run=1, bits=1))
    return Indexed(index, flat(f["signs"]), flat(_nibbles(f["scales"])), scale(f["d"]))


def pack_iq3_s(p: Indexed) -> Fields:
    index = by_block(p.index, 64)
    return {
        "d": half_floats(p.d),
        **_low_and_high(index, bits=1),
        "signs": by_block(p.signs, 32),
        "scales": join_bits(_stored(by_block(p.sc, 8)), run=1, bits=4),
    }


def _all_or_none(bits: AnyArray) -> U8:
    """The signs of eight values that share a bit."""
    return bits.astype(np.uint8) * np.uint8(255)


def iq1_s(f: Fields) -> Indexed:
    qh = f["qh"]
    index = _with_high(f["qs"], _fields_of_words(qh, 3, 4))
    signs = np.repeat(_all_or_none(qh >> np.uint16(15)), 4, axis=-1)
    return Indexed(index, flat(signs), flat(_odd((qh >> np.uint16(12)) & 7)), scale(f["d"]))


def pack_iq1_s(p: Indexed) -> Fields:
    index, signs = by_block(p.index, 32), by_block(p.signs, 32)
    qh = _words_of_fields(index >> 8, 3, 4, "<u2")
    qh |= _stored(by_block(p.sc, 8)).astype("<u2") << np.uint16(12)
    qh |= (signs[..., ::4] & 1).astype("<u2") << np.uint16(15)
    return {"d": half_floats(p.d), "qs": index.astype(np.uint8), "qh": qh}


def iq1_m(f: Fields) -> Indexed:
    qh = split_bits(f["qh"], run=1, bits=4)
    index = _with_high(f["qs"], qh & 7)
    sc = _odd(_fields_of_words(f["scales"], 3, 4))
    bits = _words_of_fields(f["scales"] >> np.uint16(12), 4, 4, "<u2")
    return Indexed(index, flat(_all_or_none(qh >> np.uint8(3))), flat(sc), scale(bits.view("<f2")))


def pack_iq1_m(p: Indexed) -> Fields:
    index, signs = by_block(p.index, 32), by_block(p.signs, 32)
    scales = _words_of_fields(_stored(by_block(p.sc, 16)), 3, 4, "<u2")
    scales |= _fields_of_words(half_floats(p.d).view("<u2"), 4, 4) << np.uint16(12)
    qh = (index >> 8).astype(np.uint8) | ((signs & np.uint8(1)) << np.uint8(3))
    return {"qs": index.astype(np.uint8), "qh": join_bits(qh, run=1, bits=4), "scales": scales}
