# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""The formats whose scales are what a block's extremes ask for, bit for bit as ggml's reference encoders compute them.

Each intrinsic takes 32 floats at an address, writes 32 codes as bytes, and two floats: scale and the value of code 0.
Every operation is rounded on its own, in the order of the definition.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import f32_pointer, stack, store_f16
from octavo.jit.simd.emit import (
    AS_WRITTEN,
    F32,
    I8,
    I16,
    I32,
    V_F32,
    V_I32,
    fill,
    i64,
    load_at,
    repeat,
    slice_lanes,
    store_at,
)
from octavo.quantizers.encoding.kernels.search_lanes import clamp, copy_bytes, emit_block
from octavo.quantizers.encoding.packing import BlockLayout

Rule = Literal["peak", "range", "largest"]
"""The value of largest magnitude gets the lowest code; smallest and largest value get the first and the last code; the
largest magnitude is as many steps as there are codes above zero."""

BLOCKS = record("x out blocks share")
"""x       float32 [blocks, 32]
out     the packed blocks
blocks  of all tasks
share   blocks of a task
"""

INFINITY = float("inf")


def _scalar(value):
    return ir.Constant(F32, value)


def _reduce(b, vector, combine):
    while vector.type.count > 1:
        half = vector.type.count // 2
        vector = combine(slice_lanes(b, vector, 0, half), slice_lanes(b, vector, half, half))
    return b.extract_element(vector, ir.Constant(I32, 0))


def _magnitudes(b, halves):
    """Two vectors of magnitudes as integers, and the largest."""
    sizes = [b.and_(b.bitcast(x, V_I32), fill(V_I32, 0x7FFFFFFF)) for x in halves]
    larger = lambda x, y: b.select(b.icmp_signed(">", x, y), x, y)  # noqa: E731
    return sizes, _reduce(b, larger(*sizes), larger)


def _inverse(b, d):
    """1 / d, 0 where that is not finite."""
    inverse = b.fdiv(_scalar(1.0), d, flags=AS_WRITTEN)
    size = b.bitcast(b.and_(b.bitcast(inverse, I32), ir.Constant(I32, 0x7FFFFFFF)), F32)
    return b.select(b.fcmp_ordered("<", size, _scalar(INFINITY)), inverse, _scalar(0.0))


def _first_peak(b, address, sizes, largest):
    """The first value of largest magnitude."""
    low, high = (b.bitcast(b.icmp_signed("==", s, repeat(b, largest)), I16) for s in sizes)
    mask = b.or_(b.zext(low, I32), b.shl(b.zext(high, I32), ir.Constant(I32, 16)))
    first = b.zext(b.cttz(mask, ir.Constant(ir.IntType(1), 1)), address.type)
    return b.bitcast(load_at(b, b.add(address, b.mul(first, i64(4))), I32), F32)


def _truncated(b, x, inverse, add, top):
    """trunc(x * inverse + add), from 0 to top."""
    t = b.fadd(b.fmul(x, repeat(b, inverse), flags=AS_WRITTEN), fill(V_F32, add), flags=AS_WRITTEN)
    return b.fptosi(clamp(b, t, fill(V_F32, 0.0), fill(V_F32, top)), V_I32)


def _half_away(b, x, inverse):
    """x * inverse to the nearest integer, halves away from zero."""
    t = b.fmul(x, repeat(b, inverse), flags=AS_WRITTEN)
    bits = b.bitcast(t, V_I32)
    size = b.bitcast(b.and_(bits, fill(V_I32, 0x7FFFFFFF)), V_F32)
    whole = b.fptosi(size, V_I32)
    rest = b.fsub(size, b.sitofp(whole, V_F32), flags=AS_WRITTEN)
    up = b.zext(b.fcmp_ordered(">=", rest, fill(V_F32, 0.5)), V_I32)
    magnitude = b.add(whole, up)
    negative = b.icmp_signed("<", bits, fill(V_I32, 0))
    return b.select(negative, b.sub(fill(V_I32, 0), magnitude), magnitude)


@cache
def block_codes(rule: Rule, bits: int) -> Any:
    """The intrinsic for a rule and a width of codes: (x, codes, floats)."""
    top, offset = float((1 << bits) - 1), float(1 << (bits - 1))

    def gen(c: Any, b: Any, s: Any, a: Any) -> Any:
        address, codes, floats = a
        halves = [load_at(b, address, V_F32, 64 * i) for i in range(2)]
        base = _scalar(0.0)
        if rule == "range":
            smaller = lambda x, y: b.select(b.fcmp_ordered("<", x, y), x, y)  # noqa: E731
            larger = lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y)  # noqa: E731
            base = _reduce(b, smaller(*halves), smaller)
            span = b.fsub(_reduce(b, larger(*halves), larger), base, flags=AS_WRITTEN)
            d = b.fdiv(span, _scalar(top), flags=AS_WRITTEN)
            halves = [b.fsub(x, repeat(b, base), flags=AS_WRITTEN) for x in halves]
            found = [_truncated(b, x, _inverse(b, d), 0.5, top) for x in halves]
        else:
            sizes, largest = _magnitudes(b, halves)
            if rule == "peak":
                d = b.fdiv(_first_peak(b, address, sizes, largest), _scalar(-offset), flags=AS_WRITTEN)
                found = [_truncated(b, x, _inverse(b, d), offset + 0.5, top) for x in halves]
            else:
                d = b.fdiv(b.bitcast(largest, F32), _scalar(offset - 1), flags=AS_WRITTEN)
                found = [b.add(_half_away(b, x, _inverse(b, d)), fill(V_I32, int(offset))) for x in halves]
        for i, q in enumerate(found):
            store_at(b, codes, b.trunc(q, ir.VectorType(I8, 16)), 16 * i)
        store_at(b, floats, d)
        store_at(b, floats, base, 4)
        return c.get_dummy_value()

    @intrinsic
    def codes_of_block(ty: Any, x: Any, codes: Any, floats: Any) -> Any:
        return types.void(types.intp, types.intp, types.intp), gen

    return codes_of_block


@kernels(BLOCKS)
def extremes_kernel(rule: Rule, bits: int, layout: BlockLayout) -> Any:
    """Task t encodes `share` blocks of 32 from block t * share on."""
    codes_of_block, emit = block_codes(rule, bits), emit_block(layout)
    nbytes, scale_at, min_at, has_min = layout.nbytes, layout.scale_at, layout.min_at, layout.min_at >= 0

    def encode(a, task):
        source, packed, floats = stack(64), stack(64), stack(64)
        f = f32_pointer(floats)  # scale, value of code 0
        first = task * a.share
        for block in range(first, min(first + a.share, a.blocks)):
            codes_of_block(a.x + 128 * block, source, floats)  # [32] float32 -> [32] bytes
            emit(packed, source)
            store_f16(packed + scale_at, f[0])
            if has_min:
                store_f16(packed + min_at, f[1])
            copy_bytes(a.out + block * nbytes, packed, nbytes)

    return encode
