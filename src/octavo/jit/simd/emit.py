# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Vector types inside Numba, and small pieces of LLVM IR that the intrinsics are made of."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import models, register_model

from octavo.jit import host_cpu

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))

F16, F32 = ir.HalfType(), ir.FloatType()

V_F32, V_I32, V_I16, V_U8 = (ir.VectorType(t, n) for t, n in ((F32, 16), (I32, 16), (I16, 32), (I8, 64)))

VOID = ir.VoidType()

AS_WRITTEN = ("nsz",)

"""Flags of sums whose order matters. Numba gives those of the kernel, reordering among them, to what has none."""


class Vec(types.Type):
    """A vector of `lanes` values."""

    def __init__(self, name, llvm):
        self.llvm = llvm
        super().__init__(name)


class Block(types.Type):
    """`n` vectors of one kind."""

    def __init__(self, vec, n):
        self.vec, self.n = vec, n
        self.llvm = ir.ArrayType(vec.llvm, n)
        super().__init__(f"block<{vec.name} x {n}>")

    def of(self, b, vectors):
        """The block that these vectors are."""
        value = ir.Constant(self.llvm, ir.Undefined)
        for t, vector in enumerate(vectors):
            value = b.insert_value(value, vector, t)
        return value


@register_model(Vec)
@register_model(Block)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, fe_type.llvm)


f32x16, i32x16, u8x64 = Vec("f32x16", V_F32), Vec("i32x16", V_I32), Vec("u8x64", V_U8)


def i64(n):
    return ir.Constant(I64, n)


def fill(llvm, value):
    return ir.Constant(llvm, [value] * llvm.count)


def pointer_at(b, address, llvm, offset=0):
    if offset:
        address = b.add(address, i64(offset))
    return b.inttoptr(address, llvm.as_pointer())


def load_at(b, address, llvm, offset=0):
    value = b.load(pointer_at(b, address, llvm, offset))
    value.align = 1
    return value


def store_at(b, address, value, offset=0):
    b.store(value, pointer_at(b, address, value.type, offset)).align = 1


def repeat(b, scalar, lanes=16):
    one = b.insert_element(ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def slice_lanes(b, vector, start, lanes):
    return b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, lanes), list(range(start, start + lanes))))


def join_lanes(b, parts):
    while len(parts) > 1:
        pairs = []
        for low, high in zip(parts[::2], parts[1::2], strict=True):
            lanes = 2 * low.type.count
            pairs.append(b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))))
        parts = pairs
    return parts[0]


def call_llvm(b, name, result, *args):
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def by_parts(b, name, result, lanes, *args):
    """An instruction for `lanes` of `result`, on a whole vector: once for each part."""
    count = result.count // lanes
    part = ir.VectorType(result.element, lanes)
    split = [[slice_lanes(b, a, i * a.type.count // count, a.type.count // count) for a in args] for i in range(count)]
    return join_lanes(b, [call_llvm(b, name, part, *s) for s in split])


def multiply_add(b, x, y, z):
    """x * y + z: one rounding where the CPU has FMA, two where it lacks it (LLVM would call a library there)."""
    if host_cpu.has_fma():
        return call_llvm(b, "llvm.fma.v16f32", V_F32, x, y, z)
    return b.fadd(b.fmul(x, y, flags=AS_WRITTEN), z, flags=AS_WRITTEN)


def widen_f16(b, half):
    """<16 x half> -> <16 x float>. Without F16C by hand: exponent moved by a multiplication, Inf and NaN kept."""
    if host_cpu.has_f16():
        return b.fpext(half, V_F32)
    bits = b.zext(b.bitcast(half, ir.VectorType(I16, 16)), V_I32)
    sign = b.shl(b.and_(bits, fill(V_I32, 0x8000)), fill(V_I32, 16))
    magnitude = b.shl(b.and_(bits, fill(V_I32, 0x7FFF)), fill(V_I32, 13))
    value = b.bitcast(b.fmul(b.bitcast(magnitude, V_F32), fill(V_F32, 2.0**112)), V_I32)
    special = b.icmp_unsigned(">=", magnitude, fill(V_I32, 0x7C00 << 13))
    value = b.select(special, b.or_(magnitude, fill(V_I32, 0x7F800000)), value)
    return b.bitcast(b.or_(value, sign), V_F32)


def narrow_f16(b, value):
    if host_cpu.has_f16():
        return b.fptrunc(value, ir.VectorType(F16, 16))
    bits = b.bitcast(value, V_I32)
    sign = b.and_(b.lshr(bits, fill(V_I32, 16)), fill(V_I32, 0x8000))
    magnitude = b.and_(bits, fill(V_I32, 0x7FFFFFFF))
    # Subnormal halves: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    small = b.sub(b.bitcast(b.fadd(b.bitcast(magnitude, V_F32), fill(V_F32, 0.5)), V_I32), fill(V_I32, 0x3F000000))
    odd = b.and_(b.lshr(magnitude, fill(V_I32, 13)), fill(V_I32, 1))
    rounded = b.add(b.sub(magnitude, fill(V_I32, (127 - 15) << 23)), b.add(odd, fill(V_I32, 0xFFF)))
    normal = b.lshr(rounded, fill(V_I32, 13))
    large = b.select(b.icmp_unsigned(">", magnitude, fill(V_I32, 0x7F800000)), fill(V_I32, 0x7E00), fill(V_I32, 0x7C00))
    out = b.select(b.icmp_unsigned("<", magnitude, fill(V_I32, (127 - 14) << 23)), small, normal)
    out = b.select(b.icmp_unsigned(">=", magnitude, fill(V_I32, 0x477FF000)), large, out)
    return b.bitcast(b.trunc(b.or_(out, sign), ir.VectorType(I16, 16)), ir.VectorType(F16, 16))


def literal(ty):
    if not isinstance(ty, types.IntegerLiteral):
        raise TypingError("wants a number that is known when the kernel is compiled")
    return ty.literal_value


def to_float(b, ints):
    return b.sitofp(ints, V_F32)
