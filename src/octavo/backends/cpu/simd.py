"""SIMD values inside Numba: vector types, and intrinsics that emit LLVM IR for them.

A vector has 16 lanes of 32 bits or 64 of 8, whatever the CPU: LLVM splits it into the registers that there are. A
`Block` is several vectors under one name; LLVM keeps each in a register of its own. Addresses are plain integers.

    acc = zeros(8)                                  # 8 vectors of 16 floats
    acc = fma_scaled(acc, dots, scale, address)     # acc[t] += float(dots[t]) * scale * d[t]

Only what the kernels use is here. Each intrinsic works on every level of `host.level()`.
"""

from __future__ import annotations

import struct
import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

from octavo.backends.cpu import host

I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
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


@register_model(Vec)
@register_model(Block)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, fe_type.llvm)


f32x16, i32x16, u8x64 = Vec("f32x16", V_F32), Vec("i32x16", V_I32), Vec("u8x64", V_U8)


def _i64(n):
    return ir.Constant(I64, n)


def _lanes(llvm, value):
    return ir.Constant(llvm, [value] * llvm.count)


def _pointer(b, address, llvm, offset=0):
    if offset:
        address = b.add(address, _i64(offset))
    return b.inttoptr(address, llvm.as_pointer())


def _load(b, address, llvm, offset=0):
    value = b.load(_pointer(b, address, llvm, offset))
    value.align = 1
    return value


def _store(b, address, value, offset=0):
    b.store(value, _pointer(b, address, value.type, offset)).align = 1


def _splat(b, scalar, lanes=16):
    one = b.insert_element(ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined), scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def _part(b, vector, start, lanes):
    return b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, lanes), list(range(start, start + lanes))))


def _join(b, parts):
    while len(parts) > 1:
        pairs = []
        for low, high in zip(parts[::2], parts[1::2], strict=True):
            lanes = 2 * low.type.count
            pairs.append(b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))))
        parts = pairs
    return parts[0]


def _call(b, name, result, *args):
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


def _by_parts(b, name, result, lanes, *args):
    """An instruction for `lanes` of `result`, on a whole vector: once for each part."""
    count = result.count // lanes
    part = ir.VectorType(result.element, lanes)
    split = [[_part(b, a, i * a.type.count // count, a.type.count // count) for a in args] for i in range(count)]
    return _join(b, [_call(b, name, part, *s) for s in split])


def _fma(b, x, y, z):
    """x * y + z: one rounding where the CPU has FMA, two where it has not (LLVM would call a library there)."""
    if "fma" in host.features() or host.level() in ("dotprod", "generic"):
        return _call(b, "llvm.fma.v16f32", V_F32, x, y, z)
    return b.fadd(b.fmul(x, y, flags=AS_WRITTEN), z, flags=AS_WRITTEN)


def _f16_to_f32(b, half):
    """<16 x half> -> <16 x float>. Without F16C by hand: exponent moved by a multiplication, Inf and NaN kept."""
    if "f16c" in host.features() or host.level() in ("dotprod", "generic"):
        return b.fpext(half, V_F32)
    bits = b.zext(b.bitcast(half, ir.VectorType(I16, 16)), V_I32)
    sign = b.shl(b.and_(bits, _lanes(V_I32, 0x8000)), _lanes(V_I32, 16))
    magnitude = b.shl(b.and_(bits, _lanes(V_I32, 0x7FFF)), _lanes(V_I32, 13))
    value = b.bitcast(b.fmul(b.bitcast(magnitude, V_F32), _lanes(V_F32, 2.0**112)), V_I32)
    special = b.icmp_unsigned(">=", magnitude, _lanes(V_I32, 0x7C00 << 13))
    value = b.select(special, b.or_(magnitude, _lanes(V_I32, 0x7F800000)), value)
    return b.bitcast(b.or_(value, sign), V_F32)


# Arguments and memory


@intrinsic
def arg(ty, args, i):
    """The i-th int64 of a kernel's arguments."""
    return types.intp(types.intp, types.intp), lambda c, b, s, a: b.load(b.gep(_pointer(b, a[0], I64), [a[1]]))


@intrinsic
def arg_f32(ty, args, i):
    """The i-th argument, a float32 in the low half of its int64."""

    def gen(c, b, s, a):
        return b.bitcast(b.trunc(b.load(b.gep(_pointer(b, a[0], I64), [a[1]])), I32), F32)

    return types.float32(types.intp, types.intp), gen


@intrinsic(prefer_literal=True)
def stack(ty, nbytes):
    """The address of `nbytes` (a constant) of this call's own memory, aligned to a cache line."""
    size = _literal(nbytes)

    def gen(c, b, s, a):
        with b.goto_entry_block():
            memory = b.alloca(I8, size)
            memory.align = 64
        return b.ptrtoint(memory, I64)

    return types.intp(nbytes), gen


def _pointer_to(numba_type, llvm):
    @intrinsic
    def pointer(ty, address):
        return types.CPointer(numba_type)(types.intp), lambda c, b, s, a: _pointer(b, a[0], llvm)

    return pointer


f32_pointer = _pointer_to(types.float32, F32)
i32_pointer = _pointer_to(types.int32, I32)
i64_pointer = _pointer_to(types.int64, I64)
u32_pointer = _pointer_to(types.uint32, I32)
i8_pointer = _pointer_to(types.int8, I8)
u8_pointer = _pointer_to(types.uint8, I8)


@intrinsic
def load_u32(ty, address):
    """Four bytes, wherever they lie, as a number from 0 to 2^32 - 1."""
    return types.intp(types.intp), lambda c, b, s, a: b.zext(_load(b, a[0], I32), I64)


@intrinsic
def store_u32(ty, address, value):
    """The low 32 bits of a number as four bytes."""

    def gen(c, b, s, a):
        _store(b, a[0], b.trunc(a[1], I32))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp), gen


@intrinsic
def load_f16(ty, address):
    """One f16 as float32."""

    def gen(c, b, s, a):
        half = _load(b, a[0], F16)
        if "f16c" in host.features() or host.level() in ("dotprod", "generic"):
            return b.fpext(half, F32)
        return b.extract_element(_f16_to_f32(b, _splat(b, half)), ir.Constant(I32, 0))

    return types.float32(types.intp), gen


@intrinsic
def store_f16x16(ty, address, value):
    """16 floats rounded to f16 (nearest, ties to even)."""

    def gen(c, b, s, a):
        _store(b, a[0], _f32_to_f16(b, a[1]))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16), gen


@intrinsic
def store_f16(ty, address, value):
    """One float rounded to f16 (nearest, ties to even)."""

    def gen(c, b, s, a):
        _store(b, a[0], b.extract_element(_f32_to_f16(b, _splat(b, a[1])), ir.Constant(I32, 0)))
        return c.get_dummy_value()

    return types.void(types.intp, types.float32), gen


def _f32_to_f16(b, value):
    if "f16c" in host.features() or host.level() in ("dotprod", "generic"):
        return b.fptrunc(value, ir.VectorType(F16, 16))
    bits = b.bitcast(value, V_I32)
    sign = b.and_(b.lshr(bits, _lanes(V_I32, 16)), _lanes(V_I32, 0x8000))
    magnitude = b.and_(bits, _lanes(V_I32, 0x7FFFFFFF))
    # Subnormal halves: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    small = b.sub(b.bitcast(b.fadd(b.bitcast(magnitude, V_F32), _lanes(V_F32, 0.5)), V_I32), _lanes(V_I32, 0x3F000000))
    odd = b.and_(b.lshr(magnitude, _lanes(V_I32, 13)), _lanes(V_I32, 1))
    rounded = b.add(b.sub(magnitude, _lanes(V_I32, (127 - 15) << 23)), b.add(odd, _lanes(V_I32, 0xFFF)))
    normal = b.lshr(rounded, _lanes(V_I32, 13))
    large = b.select(
        b.icmp_unsigned(">", magnitude, _lanes(V_I32, 0x7F800000)), _lanes(V_I32, 0x7E00), _lanes(V_I32, 0x7C00)
    )
    out = b.select(b.icmp_unsigned("<", magnitude, _lanes(V_I32, (127 - 14) << 23)), small, normal)
    out = b.select(b.icmp_unsigned(">=", magnitude, _lanes(V_I32, 0x477FF000)), large, out)
    return b.bitcast(b.trunc(b.or_(out, sign), ir.VectorType(I16, 16)), ir.VectorType(F16, 16))


@intrinsic
def load_f32x16(ty, address):
    return f32x16(types.intp), lambda c, b, s, a: _load(b, a[0], V_F32)


@intrinsic
def store_f32x16(ty, address, value):
    def gen(c, b, s, a):
        _store(b, a[0], a[1])
        return c.get_dummy_value()

    return types.void(types.intp, f32x16), gen


@intrinsic
def load_f16x16(ty, address):
    """16 f16 as floats."""
    return f32x16(types.intp), lambda c, b, s, a: _f16_to_f32(b, _load(b, a[0], ir.VectorType(F16, 16)))


@intrinsic
def load_bf16x16(ty, address):
    """16 bf16 as floats."""

    def gen(c, b, s, a):
        wide = b.zext(_load(b, a[0], ir.VectorType(I16, 16)), V_I32)
        return b.bitcast(b.shl(wide, _lanes(V_I32, 16)), V_F32)

    return f32x16(types.intp), gen


@intrinsic
def load_u8x16(ty, address):
    """16 unsigned bytes as floats."""
    gen = lambda c, b, s, a: b.sitofp(b.zext(_load(b, a[0], ir.VectorType(I8, 16)), V_I32), V_F32)  # noqa: E731
    return f32x16(types.intp), gen


@intrinsic
def load_s8x16(ty, address):
    """16 signed bytes as floats."""
    gen = lambda c, b, s, a: b.sitofp(b.sext(_load(b, a[0], ir.VectorType(I8, 16)), V_I32), V_F32)  # noqa: E731
    return f32x16(types.intp), gen


@intrinsic
def load_exponent_x16(ty, address):
    """16 bytes e as floats 2^(e - 127); e = 0 is 0."""

    def gen(c, b, s, a):
        wide = b.zext(_load(b, a[0], ir.VectorType(I8, 16)), V_I32)
        return b.bitcast(b.shl(wide, _lanes(V_I32, 23)), V_F32)

    return f32x16(types.intp), gen


# Floats


@intrinsic
def splat(ty, x):
    """A float in all lanes."""
    return f32x16(types.float32), lambda c, b, s, a: _splat(b, a[0])


def _binary(name):
    @intrinsic
    def op(ty, x, y):
        return f32x16(f32x16, f32x16), lambda c, b, s, a: getattr(b, name)(*a)

    return op


add, sub, mul, div = _binary("fadd"), _binary("fsub"), _binary("fmul"), _binary("fdiv")


@intrinsic
def maximum(ty, x, y):
    """The larger of each lane's two."""
    return f32x16(f32x16, f32x16), lambda c, b, s, a: b.select(b.fcmp_ordered(">", a[0], a[1]), a[0], a[1])


@intrinsic
def absolute(ty, x):
    return f32x16(f32x16), lambda c, b, s, a: _call(b, "llvm.fabs.v16f32", V_F32, a[0])


@intrinsic
def fma(ty, x, y, z):
    """x * y + z."""
    return f32x16(f32x16, f32x16, f32x16), lambda c, b, s, a: _fma(b, *a)


def _fold(name, combine):
    @intrinsic
    def fold(ty, x):
        def gen(c, b, s, a):
            value = a[0]
            while value.type.count > 1:
                half = value.type.count // 2
                value = combine(b, _part(b, value, 0, half), _part(b, value, half, half))
            return b.extract_element(value, ir.Constant(I32, 0))

        return types.float32(f32x16), gen

    fold.__name__ = name
    return fold


sum_lanes = _fold("sum_lanes", lambda b, x, y: b.fadd(x, y))
max_lanes = _fold("max_lanes", lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


@intrinsic
def exp(ty, x):
    """e^x to about 2 units in the last place; 0 below -87.3, no more than e^88.3, and NaN for NaN."""

    def gen(c, b, s, a):
        x = a[0]
        below = b.select(b.fcmp_unordered("uno", x, x), x, _lanes(V_F32, 0.0))
        low, high = _lanes(V_F32, -87.336544), _lanes(V_F32, 88.3)
        x = b.select(b.fcmp_ordered(">", x, high), high, x)
        keep = b.fcmp_ordered(">", x, low)
        x = b.select(keep, x, low)
        shifter = _lanes(V_F32, 12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
        shifted = _fma(b, x, _lanes(V_F32, 1.44269504088896341), shifter)
        n = b.fsub(shifted, shifter, flags=AS_WRITTEN)
        r = _fma(b, n, _lanes(V_F32, -0.693359375), x)  # ln 2 in two parts (Cody and Waite)
        r = _fma(b, n, _lanes(V_F32, 2.12194440e-4), r)
        p = _lanes(V_F32, 1 / 5040)
        for factorial in (720, 120, 24, 6, 2, 1, 1):
            p = _fma(b, p, r, _lanes(V_F32, _round32(1 / factorial)))
        exponent = b.shl(b.bitcast(shifted, V_I32), _lanes(V_I32, 23))
        value = b.bitcast(b.add(b.bitcast(p, V_I32), exponent), V_F32)
        return b.select(keep, value, below)

    return f32x16(f32x16), gen


@intrinsic
def quantize16(ty, address, values):
    """Round 16 floats to integers (nearest, ties to even), keep them as s8 at `address`; their sum as a float."""

    def gen(c, b, s, a):
        shifted = b.bitcast(b.fadd(a[1], _lanes(V_F32, 12582912.0)), V_I32)  # 1.5 * 2^23: units in the low bits
        whole = b.sub(shifted, _lanes(V_I32, 0x4B400000))
        _store(b, a[0], b.trunc(whole, ir.VectorType(I8, 16)))
        total = whole
        while total.type.count > 1:
            half = total.type.count // 2
            total = b.add(_part(b, total, 0, half), _part(b, total, half, half))
        return b.sitofp(b.extract_element(total, ir.Constant(I32, 0)), F32)

    return types.float32(types.intp, f32x16), gen


def _round32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


# Blocks


def _literal(ty):
    if not isinstance(ty, types.IntegerLiteral):
        raise TypingError("wants a number that is known when the kernel is compiled")
    return ty.literal_value


@intrinsic(prefer_literal=True)
def zeros(ty, n):
    """n vectors of zeros; `n` is a constant."""
    block = Block(f32x16, _literal(n))
    return block(n), lambda c, b, s, a: ir.Constant(block.llvm, None)


@intrinsic(prefer_literal=True)
def get(ty, block, i):
    """Vector i of a block; `i` is a constant."""
    at = _literal(i)
    return block.vec(block, i), lambda c, b, s, a: b.extract_value(a[0], at)


@intrinsic(prefer_literal=True)
def set_(ty, block, i, vec):
    """The block with vector i replaced; `i` is a constant."""
    at = _literal(i)
    return block(block, i, vec), lambda c, b, s, a: b.insert_value(a[0], a[2], at)


@intrinsic
def store_block(ty, address, stride, block):
    """Vector t of a block to address + t * stride."""

    def gen(c, b, s, a):
        for t in range(s.args[2].n):
            _store(b, b.add(a[0], b.mul(a[1], _i64(t))), b.extract_value(a[2], t))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, block), gen


@intrinsic(prefer_literal=True)
def load_block(ty, address, stride, n):
    """n vectors of 16 floats, vector t from address + t * stride; n is a constant."""
    block, count = Block(f32x16, _literal(n)), _literal(n)

    def gen(c, b, s, a):
        value = ir.Constant(block.llvm, ir.Undefined)
        for t in range(count):
            value = b.insert_value(value, _load(b, b.add(a[0], b.mul(a[1], _i64(t))), V_F32), t)
        return value

    return block(types.intp, types.intp, n), gen


def _mask(b, count):
    """<16 x i1>: lanes below `count`."""
    numbers = ir.Constant(ir.VectorType(I64, 16), list(range(16)))
    return b.icmp_signed("<", numbers, _splat(b, count))


def _masked(b, name, result, *args):
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


@intrinsic
def store_block_masked(ty, address, stride, lanes, block):
    """The first `lanes` lanes of vector t of a block to address + t * stride."""

    def gen(c, b, s, a):
        mask, align = _mask(b, a[2]), ir.Constant(I32, 1)
        for t in range(s.args[3].n):
            pointer = _pointer(b, b.add(a[0], b.mul(a[1], _i64(t))), V_F32)
            _masked(b, "llvm.masked.store.v16f32.p0", VOID, b.extract_value(a[3], t), pointer, align, mask)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, block), gen


@intrinsic(prefer_literal=True)
def load_block_masked(ty, address, stride, lanes, n):
    """n vectors of 16 floats, vector t from address + t * stride; lanes from `lanes` on are 0 and not read."""
    block, count = Block(f32x16, _literal(n)), _literal(n)

    def gen(c, b, s, a):
        value = ir.Constant(block.llvm, ir.Undefined)
        mask, align = _mask(b, a[2]), ir.Constant(I32, 1)
        for t in range(count):
            pointer = _pointer(b, b.add(a[0], b.mul(a[1], _i64(t))), V_F32)
            vector = _masked(b, "llvm.masked.load.v16f32.p0", V_F32, pointer, align, mask, _lanes(V_F32, 0.0))
            value = b.insert_value(value, vector, t)
        return value

    return block(types.intp, types.intp, types.intp, n), gen


@intrinsic
def add_blocks(ty, x, y):
    """x + y, vector by vector."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            value = b.insert_value(value, b.fadd(b.extract_value(a[0], t), b.extract_value(a[1], t)), t)
        return value

    return x(x, y), gen


@intrinsic
def scale_block(ty, block, address, stride):
    """block[t] * x[t], the float x[t] at address + t * stride."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            x = _splat(b, _load(b, b.add(a[1], b.mul(a[2], _i64(t))), F32))
            value = b.insert_value(value, b.fmul(b.extract_value(a[0], t), x), t)
        return value

    return block(block, types.intp, types.intp), gen


@intrinsic
def fma_blocks(ty, acc, block, vec):
    """acc[t] += block[t] * vec."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            value = b.insert_value(value, _fma(b, b.extract_value(a[1], t), a[2], b.extract_value(value, t)), t)
        return value

    return acc(acc, block, f32x16), gen


@intrinsic
def fma_splat(ty, acc, vec, address):
    """acc[t] += vec * x[t], for the n floats x at `address`."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            x = _splat(b, _load(b, a[2], F32, 4 * t))
            value = b.insert_value(value, _fma(b, a[1], x, b.extract_value(value, t)), t)
        return value

    return acc(acc, f32x16, types.intp), gen


@intrinsic
def fma_splat_strided(ty, acc, vec, address, stride):
    """acc[t] += vec * x[t], the float x[t] at address + t * stride."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            x = _splat(b, _load(b, b.add(a[2], b.mul(a[3], _i64(t))), F32))
            value = b.insert_value(value, _fma(b, a[1], x, b.extract_value(value, t)), t)
        return value

    return acc(acc, f32x16, types.intp, types.intp), gen


@intrinsic
def fma_scaled(ty, acc, dots, scale, address):
    """acc[t] += float(dots[t]) * scale * d[t], for the n floats d at `address`."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            d = _splat(b, _load(b, a[3], F32, 4 * t))
            product = b.fmul(_to_float(b, b.extract_value(a[1], t)), a[2])
            value = b.insert_value(value, _fma(b, product, d, b.extract_value(value, t)), t)
        return value

    return acc(acc, dots, f32x16, types.intp), gen


@intrinsic
def fma_scaled_2(ty, acc, dots0, scale0, dots1, scale1, address):
    """acc[t] += (float(dots0[t]) * scale0 + float(dots1[t]) * scale1) * d[t]."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            d = _splat(b, _load(b, a[5], F32, 4 * t))
            product = b.fmul(_to_float(b, b.extract_value(a[1], t)), a[2])
            product = _fma(b, _to_float(b, b.extract_value(a[3], t)), a[4], product)
            value = b.insert_value(value, _fma(b, product, d, b.extract_value(value, t)), t)
        return value

    return acc(acc, dots0, f32x16, dots0, f32x16, types.intp), gen


def _to_float(b, ints):
    return b.sitofp(ints, V_F32)


# Codes and integer products


@intrinsic(prefer_literal=True)
def load_codes(ty, address, bits):
    """8 vectors of codes, 16 rows x 4 consecutive k each, of a block of 16 rows x 32 k packed in `bits` x 64 bytes.

    8 bits: the vectors as they are. 4: vector j in the low and j + 4 in the high nibbles of the j-th 64 bytes. 2:
    vector j in bits 2 (j // 2) of the (j % 2)-th. 5, 6 and 3: the low 4, 4 and 2 bits so, then the high bits: of 1 bit,
    vector j in bit j of 64 bytes; of 2 bits, like 2.
    """
    width = _literal(bits)
    block = Block(u8x64, 8)

    def gen(c, b, s, a):
        value = ir.Constant(block.llvm, ir.Undefined)
        for j, vector in enumerate(_codes(b, a[0], width)):
            value = b.insert_value(value, vector, j)
        return value

    return block(types.intp, bits), gen


@intrinsic
def store_codes(ty, address, codes):
    """The vectors of a block of codes, one after the other."""

    def gen(c, b, s, a):
        for j in range(s.args[1].n):
            _store(b, a[0], b.extract_value(a[1], j), 64 * j)
        return c.get_dummy_value()

    return types.void(types.intp, codes), gen


@intrinsic(prefer_literal=True)
def load_high_codes(ty, address, bits):
    """The codes of `load_codes` moved to the high bits of their bytes: code << (8 - bits)."""
    width = _literal(bits)
    block = Block(u8x64, 8)

    def gen(c, b, s, a):
        value = ir.Constant(block.llvm, ir.Undefined)
        for j, vector in enumerate(_high_codes(b, a[0], width)):
            value = b.insert_value(value, vector, j)
        return value

    return block(types.intp, bits), gen


def _high_codes(b, address, bits):
    if bits == 8:
        return _codes(b, address, 8)
    low_bits = {4: 4, 5: 4, 6: 4, 2: 2, 3: 2}[bits]
    low = _unpack(b, address, low_bits, 8 - bits)
    if bits == low_bits:
        return low
    high = _unpack(b, b.add(address, _i64(64 * low_bits)), bits - low_bits, 8 - bits + low_bits)
    return [b.or_(x, h) for x, h in zip(low, high, strict=True)]


def _codes(b, address, bits):
    if bits == 8:
        return [_load(b, address, V_U8, 64 * j) for j in range(8)]
    low_bits = {4: 4, 5: 4, 6: 4, 2: 2, 3: 2}[bits]
    low = _unpack(b, address, low_bits)
    if bits == low_bits:
        return low
    high = _unpack(b, b.add(address, _i64(64 * low_bits)), bits - low_bits)
    return [b.or_(x, _shift_left(b, h, low_bits)) for x, h in zip(low, high, strict=True)]


def _unpack(b, address, bits, up=0):
    """8 vectors of 64 codes of 1, 2 or 4 bits from `bits` x 64 bytes, each code shifted left by `up`."""
    words = [_load(b, address, V_U8, 64 * j) for j in range(bits)]
    mask = _lanes(V_U8, ((1 << bits) - 1) << up)
    return [b.and_(_shift(b, words[j % bits], up - bits * (j // bits)), mask) for j in range(8)]


def _shift(b, bytes_, n):
    """Each byte shifted left by n, or right, with junk from its neighbour (x86 shifts no bytes): to be masked."""
    if n == 0:
        return bytes_
    words, amount = b.bitcast(bytes_, V_I16), _lanes(V_I16, abs(n))
    return b.bitcast(b.shl(words, amount) if n > 0 else b.lshr(words, amount), V_U8)


def _shift_left(b, bytes_, n):
    """Each byte shifted left; nothing may be shifted out."""
    return b.bitcast(b.shl(b.bitcast(bytes_, V_I16), _lanes(V_I16, n)), V_U8)


@intrinsic
def look_up(ty, codes, address):
    """Each code of a block (0 to 15) replaced by the byte at `address` + code."""

    def gen(c, b, s, a):
        table = _load(b, a[1], ir.VectorType(I8, 16))
        value = a[0]
        for j in range(8):
            value = b.insert_value(value, _shuffle(b, table, b.extract_value(a[0], j)), j)
        return value

    return codes(codes, types.intp), gen


def _shuffle(b, table, codes):
    level = host.level()
    if level == "avx512vnni":
        return _call(b, "llvm.x86.avx512.pshuf.b.512", V_U8, _join(b, [table] * 4), codes)
    if level in ("avxvnni", "avx2"):
        wide = _join(b, [table] * 2)
        halves = [_call(b, "llvm.x86.avx2.pshuf.b", wide.type, wide, _part(b, codes, i, 32)) for i in (0, 32)]
        return _join(b, halves)
    assert level == "dotprod", "tables are decoded when weights are packed where there is no byte shuffle"
    quarters = [_part(b, codes, i, 16) for i in range(0, 64, 16)]
    return _join(b, [_call(b, "llvm.aarch64.neon.tbl1.v16i8", table.type, table, q) for q in quarters])


@intrinsic(prefer_literal=True)
def dot_block(ty, codes, first, count, address, stride, n):
    """n vectors of int32: codes of `count` vectors from `first` on, times the s8 of n tokens, summed over their k.

    Token t's 4 * count bytes begin at address + t * stride; first, count and n are constants.
    """
    start, size, tokens = _literal(first), _literal(count), _literal(n)
    block = Block(i32x16, tokens)

    def gen(c, b, s, a):
        vectors = [b.extract_value(a[0], j) for j in range(start, start + size)]
        value = ir.Constant(block.llvm, ir.Undefined)
        for t in range(tokens):
            x = b.add(a[3], b.mul(a[4], _i64(t))) if t else a[3]
            total = _lanes(V_I32, 0)
            for j, vector in enumerate(vectors):
                four = b.bitcast(_splat(b, _load(b, x, I32, 4 * j)), V_U8)
                total = dot4(b, total, vector, four)
            value = b.insert_value(value, total, t)
        return value

    return block(codes, first, count, types.intp, types.intp, n), gen


@intrinsic(prefer_literal=True)
def fma_dots(ty, acc, codes, scale, bias, x, at, kind):
    """acc[t] += float(dot of 32 codes and token t's 32 bytes) * scale * d[t] [+ bias * s[t]], one token at a time.

    x is a block of activations of n tokens; d lies at x + at. kind (a constant): 0 plain; 1 with bias, s 4n bytes after
    d; 2 with dots that begin at the int32 12n bytes after d.
    """
    mode = _literal(kind)

    def gen(c, b, s, a):
        acc, codes, scale, bias, x, at = a[:6]
        n = s.args[0].n
        d_at = b.add(x, at)
        vectors = [b.extract_value(codes, j) for j in range(8)]
        for t in range(n):
            total = _splat(b, _load(b, d_at, I32, 12 * n + 4 * t)) if mode == 2 else _lanes(V_I32, 0)
            total = _dot_token(b, total, vectors, x, 32 * t)
            product = b.fmul(_to_float(b, total), scale)
            sums = _fma(b, product, _splat(b, _load(b, d_at, F32, 4 * t)), b.extract_value(acc, t))
            if mode == 1:
                sums = _fma(b, bias, _splat(b, _load(b, d_at, F32, 4 * n + 4 * t)), sums)
            acc = b.insert_value(acc, sums, t)
        return acc

    return acc(acc, codes, f32x16, f32x16, types.intp, types.intp, kind), gen


@intrinsic(prefer_literal=True)
def fma_dots_2(ty, acc, codes, scale0, scale1, bias0, bias1, x, at, kind):
    """`fma_dots` with scales and biases of their own for the first and the last 16 codes.

    bias0 is that of the first less that of the last; the sum of the first 16 values lies 8n bytes after d, and the
    int32 at which the dots begin 16n and 20n.
    """
    mode = _literal(kind)

    def gen(c, b, s, a):
        acc, codes, scale0, scale1, bias0, bias1, x, at = a[:8]
        n = s.args[0].n
        d_at = b.add(x, at)
        vectors = [b.extract_value(codes, j) for j in range(8)]
        for t in range(n):
            first, last = _lanes(V_I32, 0), _lanes(V_I32, 0)
            if mode == 2:
                first, last = (_splat(b, _load(b, d_at, I32, k * n + 4 * t)) for k in (16, 20))
            first = _dot_token(b, first, vectors[:4], x, 32 * t)
            last = _dot_token(b, last, vectors[4:], x, 32 * t + 16)
            product = _fma(b, _to_float(b, last), scale1, b.fmul(_to_float(b, first), scale0))
            sums = _fma(b, product, _splat(b, _load(b, d_at, F32, 4 * t)), b.extract_value(acc, t))
            if mode == 1:
                sums = _fma(b, bias1, _splat(b, _load(b, d_at, F32, 4 * n + 4 * t)), sums)
                sums = _fma(b, bias0, _splat(b, _load(b, d_at, F32, 8 * n + 4 * t)), sums)
            acc = b.insert_value(acc, sums, t)
        return acc

    return acc(acc, codes, f32x16, f32x16, f32x16, f32x16, types.intp, types.intp, kind), gen


def _dot_token(b, total, vectors, x, offset):
    for j, vector in enumerate(vectors):
        four = b.bitcast(_splat(b, _load(b, x, I32, offset + 4 * j)), V_U8)
        total = dot4(b, total, vector, four)
    return total


def dot4(b, acc, u8, s8):
    """acc[i] += the sum of four products of unsigned and signed bytes, for 16 lanes; emitted, not called.

    vpdpbusd with VNNI; else 16-bit products of even and odd bytes (pmaddwd), which can't overflow: 255 * 128 * 2 fits
    32 bits. usdot on Arm with i8mm, and with dotprod only sdot on codes moved to signed, and the move undone.
    """
    level = host.level()
    if level == "avx512vnni":
        return _call(b, "llvm.x86.avx512.vpdpbusd.512", V_I32, acc, u8, s8)
    if level == "avxvnni":
        return _by_parts_i32(b, "llvm.x86.avx512.vpdpbusd.256", 8, acc, u8, s8)
    if level == "dotprod":
        return _dot4_arm(b, acc, u8, s8)
    even = [b.and_(b.bitcast(u8, V_I16), _lanes(V_I16, 255)), b.ashr(_shift16(b, s8), _lanes(V_I16, 8))]
    odd = [b.lshr(b.bitcast(u8, V_I16), _lanes(V_I16, 8)), b.ashr(b.bitcast(s8, V_I16), _lanes(V_I16, 8))]
    for x, y in (even, odd):
        acc = b.add(acc, _pair_products(b, x, y))
    return acc


def _shift16(b, s8):
    return b.shl(b.bitcast(s8, V_I16), _lanes(V_I16, 8))


def _pair_products(b, x, y):
    """<32 x i16> twice -> <16 x i32>: x[2i] y[2i] + x[2i+1] y[2i+1]."""
    if host.level() == "avx2":
        return _by_parts(b, "llvm.x86.avx2.pmadd.wd", V_I32, 8, x, y)
    if host.level() == "x86-64":
        return _by_parts(b, "llvm.x86.sse2.pmadd.wd", V_I32, 4, x, y)
    wide = ir.VectorType(I32, 32)
    products = b.mul(b.sext(x, wide), b.sext(y, wide))
    even, odd = (ir.Constant(V_I32, list(range(i, 32, 2))) for i in (0, 1))
    return b.add(b.shuffle_vector(products, products, even), b.shuffle_vector(products, products, odd))


def _by_parts_i32(b, name, lanes, acc, u8, s8):
    """A dot product whose byte operands are declared as <lanes x i32>."""
    parts = []
    for i in range(0, 16, lanes):
        bytes_ = [_part(b, v, 4 * i, 4 * lanes) for v in (u8, s8)]
        parts.append(_call(b, name, ir.VectorType(I32, lanes), _part(b, acc, i, lanes), *bytes_))
    return _join(b, parts)


def _dot4_arm(b, acc, u8, s8):
    mixed = "i8mm" in host.features()
    name = "usdot" if mixed else "sdot"
    parts = []
    for i in range(0, 16, 4):
        part, u, x = _part(b, acc, i, 4), _part(b, u8, 4 * i, 16), _part(b, s8, 4 * i, 16)
        if not mixed:  # u * x = (u - 128) * x + 128 * x
            u = b.xor(u, _lanes(u.type, -128))
            part = _call(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", part.type, part, _lanes(u.type, 64), x)
            part = _call(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", part.type, part, _lanes(u.type, 64), x)
        parts.append(_call(b, f"llvm.aarch64.neon.{name}.v4i32.v16i8", part.type, part, u, x))
    return _join(b, parts)


# Control


@intrinsic
def prefetch(ty, address):
    """Ask for the cache line at `address`."""

    def gen(c, b, s, a):
        one, three = ir.Constant(I32, 1), ir.Constant(I32, 3)
        pointer = _pointer(b, a[0], I8)
        signature = ir.FunctionType(VOID, [pointer.type, I32, I32, I32])
        function = cgutils.get_or_insert_function(b.module, signature, "llvm.prefetch.p0")
        b.call(function, [pointer, ir.Constant(I32, 0), three, one])
        return c.get_dummy_value()

    return types.void(types.intp), gen


@intrinsic
def call(ty, function, args, task):
    """Call the kernel at an address: void(args, task)."""

    def gen(c, b, s, a):
        signature = ir.FunctionType(VOID, [I64, I64])
        b.call(b.inttoptr(a[0], signature.as_pointer()), [a[1], a[2]])
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), gen


@intrinsic
def atomic_add(ty, address, n):
    """The int64 at an address before n was added to it, in one step for all threads."""
    gen = lambda c, b, s, a: b.atomic_rmw("add", _pointer(b, a[0], I64), a[1], "seq_cst")  # noqa: E731
    return types.intp(types.intp, types.intp), gen


@intrinsic
def atomic_load(ty, address):
    """The int64 at an address, as other threads left it."""
    return types.intp(types.intp), lambda c, b, s, a: b.load_atomic(_pointer(b, a[0], I64), "seq_cst", 8)


@intrinsic
def yield_thread(ty):
    """Let the system run another thread on this core."""

    def gen(c, b, s, a):
        if sys.platform != "win32":
            _call(b, "sched_yield", I32)
        return c.get_dummy_value()

    return types.void(), gen


@intrinsic
def pause(ty):
    """Tell the CPU that this is a waiting loop."""

    def gen(c, b, s, a):
        if host.level() in ("avx512vnni", "avxvnni", "avx2", "x86-64"):
            _call(b, "llvm.x86.sse2.pause", VOID)
        return c.get_dummy_value()

    return types.void(), gen
