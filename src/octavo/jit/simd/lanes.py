# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Loads and stores of up to 16 floats in the types that results have: f32, f16 and bf16."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.simd.blocks import lane_mask, masked
from octavo.jit.simd.emit import (
    F16,
    I16,
    I32,
    V_F32,
    V_I32,
    VOID,
    f32x16,
    fill,
    literal,
    narrow_f16,
    pointer_at,
    widen_f16,
)

F32_KIND, F16_KIND, BF16_KIND = 0, 1, 2

HALVES = ir.VectorType(I16, 16)


@intrinsic(prefer_literal=True)
def load_lanes(ty, address, lanes, kind):
    """The first `lanes` of 16 floats; the others are 0 and not read."""
    stored = literal(kind)

    def gen(c, b, s, a):
        mask, align = lane_mask(b, a[1]), ir.Constant(I32, 1)
        llvm, name = (V_F32, "v16f32") if stored == F32_KIND else (HALVES, "v16i16")
        value = masked(
            b, f"llvm.masked.load.{name}.p0", llvm, pointer_at(b, a[0], llvm), align, mask, ir.Constant(llvm, None)
        )
        if stored == F16_KIND:
            return widen_f16(b, b.bitcast(value, ir.VectorType(F16, 16)))
        if stored == BF16_KIND:
            return b.bitcast(b.shl(b.zext(value, V_I32), fill(V_I32, 16)), V_F32)
        return value

    return f32x16(types.intp, types.intp, kind), gen


@intrinsic(prefer_literal=True)
def store_lanes(ty, address, lanes, value, kind):
    """The first `lanes` of 16 floats, rounded to nearest, ties to even."""
    stored = literal(kind)

    def gen(c, b, s, a):
        mask, align, value = lane_mask(b, a[1]), ir.Constant(I32, 1), a[2]
        if stored == F16_KIND:
            value = b.bitcast(narrow_f16(b, value), HALVES)
        elif stored == BF16_KIND:
            value = _narrow_bf16(b, value)
        name = "v16f32" if stored == F32_KIND else "v16i16"
        masked(b, f"llvm.masked.store.{name}.p0", VOID, value, pointer_at(b, a[0], value.type), align, mask)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, f32x16, kind), gen


def _narrow_bf16(b, value):
    bits = b.bitcast(value, V_I32)
    odd = b.and_(b.lshr(bits, fill(V_I32, 16)), fill(V_I32, 1))
    rounded = b.lshr(b.add(bits, b.add(odd, fill(V_I32, 0x7FFF))), fill(V_I32, 16))
    nan = b.icmp_unsigned(">", b.and_(bits, fill(V_I32, 0x7FFFFFFF)), fill(V_I32, 0x7F800000))
    return b.trunc(b.select(nan, fill(V_I32, 0x7FC0), rounded), HALVES)
