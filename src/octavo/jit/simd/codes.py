# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Packed codes of 16 rows x 32 values, unpacked to bytes."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host_cpu
from octavo.jit.simd.emit import (
    I8,
    V_I16,
    V_U8,
    Block,
    call_llvm,
    fill,
    i64,
    join_lanes,
    literal,
    load_at,
    slice_lanes,
    store_at,
    u8x64,
)


@intrinsic(prefer_literal=True)
def load_codes(ty, address, bits):
    """8 vectors of codes, 16 rows x 4 consecutive k each, of a block of 16 rows x 32 k packed in `bits` x 64 bytes.

    8 bits: the vectors as they are. 4: vector j in the low and j + 4 in the high nibbles of the j-th 64 bytes. 2:
    vector j in bits 2 (j // 2) of the (j % 2)-th. 5 and 3: the low 4 and 2 bits so, then vector j's high bit in bit j
    of 64 bytes. 6: for each half of the vectors 3 x 64 bytes, which hold three of them in their high six bits, and in
    their low two the fourth, its highest bits first.
    """
    width = literal(bits)
    block = Block(u8x64, 8)
    return block(types.intp, bits), lambda c, b, s, a: block.of(b, _codes(b, a[0], width))


@intrinsic
def store_codes(ty, address, codes):
    """The vectors of a block of codes, one after the other."""

    def gen(c, b, s, a):
        for j in range(s.args[1].n):
            store_at(b, a[0], b.extract_value(a[1], j), 64 * j)
        return c.get_dummy_value()

    return types.void(types.intp, codes), gen


@intrinsic(prefer_literal=True)
def load_high_codes(ty, address, bits):
    """The codes of `load_codes` moved to the high bits of their bytes: code << (8 - bits)."""
    width = literal(bits)
    block = Block(u8x64, 8)
    return block(types.intp, bits), lambda c, b, s, a: block.of(b, _high_codes(b, a[0], width))


def _high_codes(b, address, bits):
    if bits == 8:
        return _codes(b, address, 8)
    if bits == 6:
        return _six_bits(b, address)
    low_bits = {4: 4, 5: 4, 2: 2, 3: 2}[bits]
    low = _unpack(b, address, low_bits, 8 - bits)
    if bits == low_bits:
        return low
    high = _unpack(b, b.add(address, i64(64 * low_bits)), bits - low_bits, 8 - bits + low_bits)
    return [b.or_(x, h) for x, h in zip(low, high, strict=True)]


def _codes(b, address, bits):
    if bits == 8:
        return [load_at(b, address, V_U8, 64 * j) for j in range(8)]
    if bits == 6:
        return [b.and_(shift(b, x, -2), fill(V_U8, 63)) for x in _six_bits(b, address)]
    low_bits = {4: 4, 5: 4, 2: 2, 3: 2}[bits]
    low = _unpack(b, address, low_bits)
    if bits == low_bits:
        return low
    high = _unpack(b, b.add(address, i64(64 * low_bits)), bits - low_bits)
    return [b.or_(x, _shift_left(b, h, low_bits)) for x, h in zip(low, high, strict=True)]


def _six_bits(b, address):
    """8 vectors of codes in the high six bits of their bytes: three of four take an instruction."""
    vectors = []
    for half in (0, 192):
        words = [load_at(b, address, V_U8, half + 64 * i) for i in range(3)]
        fourth = fill(V_U8, 0)
        for word, up in zip(words, (6, 4, 2), strict=True):
            fourth = b.or_(fourth, b.and_(shift(b, word, up), fill(V_U8, 3 << up)))
        vectors += [*(b.and_(word, fill(V_U8, 0xFC)) for word in words), fourth]
    return vectors


def _unpack(b, address, bits, up=0):
    """8 vectors of 64 codes of 1, 2 or 4 bits from `bits` x 64 bytes, each code shifted left by `up`."""
    words = [load_at(b, address, V_U8, 64 * j) for j in range(bits)]
    mask = fill(V_U8, ((1 << bits) - 1) << up)
    return [b.and_(shift(b, words[j % bits], up - bits * (j // bits)), mask) for j in range(8)]


def shift(b, bytes_, n):
    """Each byte shifted left by n, or right, with junk from its neighbour (x86 shifts no bytes): to be masked."""
    if n == 0:
        return bytes_
    words, amount = b.bitcast(bytes_, V_I16), fill(V_I16, abs(n))
    return b.bitcast(b.shl(words, amount) if n > 0 else b.lshr(words, amount), V_U8)


def _shift_left(b, bytes_, n):
    """Each byte shifted left; nothing may be shifted out."""
    return b.bitcast(b.shl(b.bitcast(bytes_, V_I16), fill(V_I16, n)), V_U8)


@intrinsic(prefer_literal=True)
def raise_codes(ty, codes, by):
    """Each code of a block, `by` more; no sum is above 255."""
    more = literal(by)

    def gen(c, b, s, a):
        value = a[0]
        for j in range(8):
            value = b.insert_value(value, b.add(b.extract_value(value, j), fill(V_U8, more)), j)
        return value

    return codes(codes, by), gen


@intrinsic
def look_up(ty, codes, address):
    """Each code of a block (0 to 15) replaced by the byte at `address` + code."""

    def gen(c, b, s, a):
        table = load_at(b, a[1], ir.VectorType(I8, 16))
        value = a[0]
        for j in range(8):
            value = b.insert_value(value, shuffle(b, table, b.extract_value(a[0], j)), j)
        return value

    return codes(codes, types.intp), gen


def shuffle(b, table, codes):
    """Bytes of a table of 16, by 64 codes below 16."""
    level = host_cpu.level()
    if level == "avx512vnni":
        return call_llvm(b, "llvm.x86.avx512.pshuf.b.512", V_U8, join_lanes(b, [table] * 4), codes)
    if level in ("avxvnni", "avx2"):
        wide = join_lanes(b, [table] * 2)
        halves = [call_llvm(b, "llvm.x86.avx2.pshuf.b", wide.type, wide, slice_lanes(b, codes, i, 32)) for i in (0, 32)]
        return join_lanes(b, halves)
    assert level in ("i8mm", "dotprod"), "tables are decoded when weights are packed where there is no byte shuffle"
    quarters = [slice_lanes(b, codes, i, 16) for i in range(0, 64, 16)]
    return join_lanes(b, [call_llvm(b, "llvm.aarch64.neon.tbl1.v16i8", table.type, table, q) for q in quarters])
