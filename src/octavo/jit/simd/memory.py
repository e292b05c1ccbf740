# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Memory, pointers, and loads and stores that convert."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host_cpu
from octavo.jit.simd.emit import (
    AS_WRITTEN,
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    V_F32,
    V_I32,
    VOID,
    Block,
    call_llvm,
    f32x16,
    fill,
    literal,
    load_at,
    narrow_f16,
    pointer_at,
    repeat,
    slice_lanes,
    store_at,
    widen_f16,
)


@intrinsic(prefer_literal=True)
def stack(ty, nbytes):
    """The address of `nbytes` (a constant) of this call's own memory, aligned to a cache line."""
    size = literal(nbytes)

    def gen(c, b, s, a):
        with b.goto_entry_block():
            memory = b.alloca(I8, size)
            memory.align = 64
        return b.ptrtoint(memory, I64)

    return types.intp(nbytes), gen


def _pointer_to(numba_type, llvm):
    @intrinsic
    def pointer(ty, address):
        return types.CPointer(numba_type)(types.intp), lambda c, b, s, a: pointer_at(b, a[0], llvm)

    return pointer


f32_pointer = _pointer_to(types.float32, F32)

i32_pointer = _pointer_to(types.int32, I32)

i64_pointer = _pointer_to(types.int64, I64)

u32_pointer = _pointer_to(types.uint32, I32)

i8_pointer = _pointer_to(types.int8, I8)

u8_pointer = _pointer_to(types.uint8, I8)


def _prefetch_to(level):
    @intrinsic
    def prefetch(ty, address):
        def gen(c, b, s, a):
            near = 4 - level  # the locality that LLVM's prefetch takes
            call_llvm(
                b, "llvm.prefetch.p0", VOID, pointer_at(b, a[0], I8), *(ir.Constant(I32, n) for n in (0, near, 1))
            )
            return c.get_dummy_value()

        return types.void(types.intp), gen

    prefetch.__doc__ = f"""Ask for the cache line of an address, for later, as far as the cache's level {level}."""
    return prefetch


prefetch = _prefetch_to(1)

prefetch_to_l2 = _prefetch_to(2)


@intrinsic
def advance(ty, address, nbytes):
    """An address this many bytes further, in a register of its own: none is made of a base and an index instead.

    LLVM likes to count a loop in the index. A dot product with an index in its address is two
    operations, without it one.
    """

    def gen(c, b, s, a):
        hidden = ir.InlineAsm(ir.FunctionType(I64, (I64,)), "", "=r,0", side_effect=False)
        return b.call(hidden, [b.add(a[0], a[1])])

    return types.intp(types.intp, types.intp), gen


@intrinsic
def load_u32(ty, address):
    """Four bytes, wherever they lie, as a number from 0 to 2^32 - 1."""
    return types.intp(types.intp), lambda c, b, s, a: b.zext(load_at(b, a[0], I32), I64)


@intrinsic
def store_u32(ty, address, value):
    """The low 32 bits of a number as four bytes."""

    def gen(c, b, s, a):
        store_at(b, a[0], b.trunc(a[1], I32))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp), gen


@intrinsic
def load_f16(ty, address):
    """One f16 as float32."""

    def gen(c, b, s, a):
        half = load_at(b, a[0], F16)
        if host_cpu.has_f16():
            return b.fpext(half, F32)
        return b.extract_element(widen_f16(b, repeat(b, half)), ir.Constant(I32, 0))

    return types.float32(types.intp), gen


@intrinsic
def store_f16(ty, address, value):
    """One float rounded to f16 (nearest, ties to even)."""

    def gen(c, b, s, a):
        store_at(b, a[0], b.extract_element(narrow_f16(b, repeat(b, a[1])), ir.Constant(I32, 0)))
        return c.get_dummy_value()

    return types.void(types.intp, types.float32), gen


@intrinsic
def load_f32x16(ty, address):
    return f32x16(types.intp), lambda c, b, s, a: load_at(b, a[0], V_F32)


@intrinsic
def store_f32x16(ty, address, value):
    def gen(c, b, s, a):
        store_at(b, a[0], a[1])
        return c.get_dummy_value()

    return types.void(types.intp, f32x16), gen


@intrinsic
def load_f16x16(ty, address):
    """16 f16 as floats."""
    return f32x16(types.intp), lambda c, b, s, a: widen_f16(b, load_at(b, a[0], ir.VectorType(F16, 16)))


def finite_e4m3(b, codes):
    """<16 x i8> -> <16 x float>: what `load_finite_e4m3x16` loads."""
    halves = ir.VectorType(I16, 16)
    bits = b.and_(b.shl(b.sext(codes, halves), fill(halves, 7)), fill(halves, -0x4001))
    return widen_f16(b, b.bitcast(bits, ir.VectorType(F16, 16)))


@intrinsic
def load_finite_e4m3x16(ty, address):
    """`load_e4m3x16` of numbers of which none is NaN, in half as many instructions."""

    return f32x16(types.intp), lambda c, b, s, a: finite_e4m3(b, load_at(b, a[0], ir.VectorType(I8, 16)))


@intrinsic
def load_finite_e4m3x32(ty, address):
    """`load_finite_e4m3x16` of 32 numbers, as a block of two vectors, in fewer instructions than two of it."""
    block = Block(f32x16, 2)

    def gen(c, b, s, a):
        halves = ir.VectorType(I16, 32)
        codes = b.sext(load_at(b, a[0], ir.VectorType(I8, 32)), halves)
        bits = b.bitcast(b.and_(b.shl(codes, fill(halves, 7)), fill(halves, -0x4001)), ir.VectorType(F16, 32))
        return block.of(b, (widen_f16(b, slice_lanes(b, bits, i, 16)) for i in (0, 16)))

    return block(types.intp), gen


@intrinsic
def load_e4m3x16(ty, address):
    """16 e4m3 numbers over 256 as floats: as f16 they have the same bits but for the exponent's bias, and for NaN."""

    def gen(c, b, s, a):
        halves = ir.VectorType(I16, 16)
        bits = b.sext(load_at(b, a[0], ir.VectorType(I8, 16)), halves)
        magnitude = b.and_(bits, fill(halves, 0x7F))
        nan = b.and_(b.add(magnitude, fill(halves, 1)), fill(halves, 0x80))  # 0x7F is the one NaN: fill its exponent
        sign = b.and_(bits, fill(halves, -0x8000))
        half = b.or_(b.shl(b.or_(magnitude, nan), fill(halves, 7)), sign)
        return widen_f16(b, b.bitcast(half, ir.VectorType(F16, 16)))

    return f32x16(types.intp), gen


@intrinsic
def store_e4m3x16(ty, address, value):
    """16 floats from -448 to 448 as the nearest e4m3 numbers, ties to even.

    A mantissa is rounded in its place, which may carry into the exponent; below 2^-6 steps are equal.
    """

    def gen(c, b, s, a):
        bits = b.bitcast(a[1], V_I32)
        magnitude = b.and_(bits, fill(V_I32, 0x7FFFFFFF))
        odd = b.and_(b.lshr(magnitude, fill(V_I32, 20)), fill(V_I32, 1))
        rounded = b.lshr(b.add(b.add(magnitude, fill(V_I32, (1 << 19) - 1)), odd), fill(V_I32, 20))
        normal = b.sub(rounded, fill(V_I32, (127 - 7) << 3))
        steps = b.fmul(b.bitcast(magnitude, V_F32), fill(V_F32, 2.0**9))
        shifted = b.bitcast(b.fadd(steps, fill(V_F32, 12582912.0), flags=AS_WRITTEN), V_I32)
        small = b.icmp_unsigned("<", magnitude, fill(V_I32, (127 - 6) << 23))
        code = b.select(small, b.sub(shifted, fill(V_I32, 0x4B400000)), normal)
        sign = b.and_(b.lshr(bits, fill(V_I32, 24)), fill(V_I32, 0x80))
        store_at(b, a[0], b.trunc(b.or_(code, sign), ir.VectorType(I8, 16)))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16), gen


@intrinsic
def load_e5m2x16(ty, address):
    """16 e5m2 numbers, the upper bytes of f16, as floats."""

    def gen(c, b, s, a):
        halves = ir.VectorType(I16, 16)
        half = b.shl(b.zext(load_at(b, a[0], ir.VectorType(I8, 16)), halves), fill(halves, 8))
        return widen_f16(b, b.bitcast(half, ir.VectorType(F16, 16)))

    return f32x16(types.intp), gen


@intrinsic
def store_f16x16(ty, address, value):
    """16 floats rounded to f16 (nearest, ties to even)."""

    def gen(c, b, s, a):
        store_at(b, a[0], narrow_f16(b, a[1]))
        return c.get_dummy_value()

    return types.void(types.intp, f32x16), gen


@intrinsic
def scatter_f16(ty, address, stride, value):
    """`store_f16x16`, lane i to address + i * stride."""

    def gen(c, b, s, a):
        half = narrow_f16(b, a[2])
        for i in range(16):
            store_at(b, b.add(a[0], b.mul(a[1], ir.Constant(I64, i))), b.extract_element(half, ir.Constant(I32, i)))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, f32x16), gen


@intrinsic
def load_bf16x16(ty, address):
    """16 bf16 as floats."""

    def gen(c, b, s, a):
        wide = b.zext(load_at(b, a[0], ir.VectorType(I16, 16)), V_I32)
        return b.bitcast(b.shl(wide, fill(V_I32, 16)), V_F32)

    return f32x16(types.intp), gen


@intrinsic
def load_u8x16(ty, address):
    """16 unsigned bytes as floats."""
    gen = lambda c, b, s, a: b.sitofp(b.zext(load_at(b, a[0], ir.VectorType(I8, 16)), V_I32), V_F32)  # noqa: E731
    return f32x16(types.intp), gen


@intrinsic
def load_s8x16(ty, address):
    """16 signed bytes as floats."""
    gen = lambda c, b, s, a: b.sitofp(b.sext(load_at(b, a[0], ir.VectorType(I8, 16)), V_I32), V_F32)  # noqa: E731
    return f32x16(types.intp), gen


@intrinsic
def load_exponent_x16(ty, address):
    """16 bytes e as floats 2^(e - 127); e = 0 is 0."""

    def gen(c, b, s, a):
        wide = b.zext(load_at(b, a[0], ir.VectorType(I8, 16)), V_I32)
        return b.bitcast(b.shl(wide, fill(V_I32, 23)), V_F32)

    return f32x16(types.intp), gen
