# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Several vectors under one name, for the tokens of a tile."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo.jit.simd.emit import (
    AS_WRITTEN,
    F32,
    I32,
    I64,
    V_F32,
    VOID,
    Block,
    f32x16,
    fill,
    i64,
    literal,
    load_at,
    multiply_add,
    pointer_at,
    repeat,
    store_at,
)


@intrinsic(prefer_literal=True)
def zeros(ty, n):
    """n vectors of zeros; `n` is a constant."""
    block = Block(f32x16, literal(n))
    return block(n), lambda c, b, s, a: ir.Constant(block.llvm, None)


@intrinsic(prefer_literal=True)
def get(ty, block, i):
    """Vector i of a block; `i` is a constant."""
    at = literal(i)
    return block.vec(block, i), lambda c, b, s, a: b.extract_value(a[0], at)


@intrinsic
def store_block(ty, address, stride, block):
    """Vector t of a block to address + t * stride."""

    def gen(c, b, s, a):
        for t in range(s.args[2].n):
            store_at(b, b.add(a[0], b.mul(a[1], i64(t))), b.extract_value(a[2], t))
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, block), gen


@intrinsic(prefer_literal=True)
def load_block(ty, address, stride, n):
    """n vectors of 16 floats, vector t from address + t * stride; n is a constant."""
    block = Block(f32x16, literal(n))

    def gen(c, b, s, a):
        return block.of(b, (load_at(b, b.add(a[0], b.mul(a[1], i64(t))), V_F32) for t in range(block.n)))

    return block(types.intp, types.intp, n), gen


def lane_mask(b, count):
    """<16 x i1>: lanes below `count`."""
    numbers = ir.Constant(ir.VectorType(I64, 16), list(range(16)))
    return b.icmp_signed("<", numbers, repeat(b, count))


def masked(b, name, result, *args):
    """A call of LLVM's masked load or store called `name`."""
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(function, args)


@intrinsic
def store_block_masked(ty, address, stride, lanes, block):
    """The first `lanes` lanes of vector t of a block to address + t * stride."""

    def gen(c, b, s, a):
        mask, align = lane_mask(b, a[2]), ir.Constant(I32, 1)
        for t in range(s.args[3].n):
            pointer = pointer_at(b, b.add(a[0], b.mul(a[1], i64(t))), V_F32)
            masked(b, "llvm.masked.store.v16f32.p0", VOID, b.extract_value(a[3], t), pointer, align, mask)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, block), gen


@intrinsic(prefer_literal=True)
def load_block_masked(ty, address, stride, lanes, n):
    """n vectors of 16 floats, vector t from address + t * stride; lanes from `lanes` on are 0 and not read."""
    block = Block(f32x16, literal(n))

    def gen(c, b, s, a):
        mask, align = lane_mask(b, a[2]), ir.Constant(I32, 1)
        vectors = []
        for t in range(block.n):
            pointer = pointer_at(b, b.add(a[0], b.mul(a[1], i64(t))), V_F32)
            rest = fill(V_F32, 0.0)
            vectors.append(masked(b, "llvm.masked.load.v16f32.p0", V_F32, pointer, align, mask, rest))
        return block.of(b, vectors)

    return block(types.intp, types.intp, types.intp, n), gen


@intrinsic
def add_blocks(ty, x, y):
    """x + y, vector by vector, in the order of the source: what is inlined adds as what is called."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            total = b.fadd(b.extract_value(a[0], t), b.extract_value(a[1], t), flags=AS_WRITTEN)
            value = b.insert_value(value, total, t)
        return value

    return x(x, y), gen


@intrinsic
def scale_block(ty, block, address, stride):
    """block[t] * x[t], the float x[t] at address + t * stride."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            x = repeat(b, load_at(b, b.add(a[1], b.mul(a[2], i64(t))), F32))
            value = b.insert_value(value, b.fmul(b.extract_value(a[0], t), x), t)
        return value

    return block(block, types.intp, types.intp), gen


@intrinsic
def fma_blocks(ty, acc, block, vec):
    """acc[t] += block[t] * vec."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            value = b.insert_value(value, multiply_add(b, b.extract_value(a[1], t), a[2], b.extract_value(value, t)), t)
        return value

    return acc(acc, block, f32x16), gen


@intrinsic
def fma_splat_strided(ty, acc, vec, address, stride):
    """acc[t] += vec * x[t], the float x[t] at address + t * stride."""

    def gen(c, b, s, a):
        value = a[0]
        for t in range(s.args[0].n):
            x = repeat(b, load_at(b, b.add(a[2], b.mul(a[3], i64(t))), F32))
            value = b.insert_value(value, multiply_add(b, a[1], x, b.extract_value(value, t)), t)
        return value

    return acc(acc, f32x16, types.intp, types.intp), gen


@intrinsic(prefer_literal=True)
def fma_sums(ty, acc, vec, address, stride, count):
    """acc[t] += vec * x[t], x the sum of `count` rows of n floats, from `address` on `stride` bytes apart."""
    rows = literal(count)

    def gen(c, b, s, a):
        n = s.args[0].n
        kind, total = ir.VectorType(F32, n), None
        for i in range(rows):
            row = load_at(b, b.add(a[2], b.mul(a[3], i64(i))), kind)
            total = row if total is None else b.fadd(total, row, flags=AS_WRITTEN)
        place = _in_memory(b, total) if n == V_F32.count else None
        value = a[0]
        for t in range(n):
            x = b.extract_element(total, ir.Constant(I32, t)) if place is None else load_at(b, place, F32, 4 * t)
            value = b.insert_value(value, multiply_add(b, a[1], repeat(b, x), b.extract_value(value, t)), t)
        return value

    return acc(acc, f32x16, types.intp, types.intp, count), gen


def _in_memory(b, vector):
    """The address of a vector's numbers: loaded from there, each is in all lanes without an instruction of its own.

    LLVM would take them from the register if it knew what lies there.
    """
    with b.goto_entry_block():
        memory = b.alloca(vector.type)
        memory.align = 64
    b.store(vector, memory)
    return b.call(ir.InlineAsm(ir.FunctionType(I64, (I64,)), "", "=r,0", side_effect=False), [b.ptrtoint(memory, I64)])
