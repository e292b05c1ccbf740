# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of codes and int8 activations, with the best instruction that the CPU has."""

from __future__ import annotations

from functools import partial

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host_cpu
from octavo.jit.simd.emit import (
    F32,
    I8,
    I32,
    V_F32,
    V_I16,
    V_I32,
    V_U8,
    by_parts,
    call_llvm,
    fill,
    join_lanes,
    literal,
    load_at,
    multiply_add,
    repeat,
    slice_lanes,
    to_float,
)

PLAIN, BIASED, PRELOADED = 0, 1, 2
"""Kinds of sums: from 0 on; with a bias; from integers on that lie beside the activations."""

FEW = 2
"""Tokens whose sums LLVM may make as it likes."""


@intrinsic(prefer_literal=True)
def fma_dots(ty, acc, codes, scale, bias, x, at, kind, offset, most):
    """acc[t] += float(dot of 32 codes and token t's 32 bytes) * scale * d[t] [+ bias * s[t]], one token at a time.

    codes are a block, or the address where `store_codes` has put them. scale and bias are vectors, or addresses, which
    are read after the codes. x is a block of activations of n tokens; d lies at x + at. kind is a constant: BIASED,
    with s 4n bytes after d; PRELOADED, with dots that begin at offset / 128 of the int32 12n bytes after d; or PLAIN.
    `offset`, a power of two, and `most`, the largest code, are constants.
    """
    mode, shift, run = literal(kind), 8 - literal(offset).bit_length(), host_cpu.products_of_16_bits(literal(most))

    def gen(c, b, s, a):
        acc, codes, scale, bias, x, at = a[:6]
        n = s.args[0].n
        d_at = b.add(x, at)
        vectors = _vectors(b, s.args[1], codes)
        begins = dot_begins(b, d_at, n, 12, shift if mode == PRELOADED else None)
        for t, total in enumerate(_dots(b, begins, vectors, x, 0, run)):
            factor, more = floats_of(b, s.args[2], scale), floats_of(b, s.args[3], bias)
            acc = b.insert_value(acc, fma_total(b, b.extract_value(acc, t), total, factor, more, d_at, n, t, mode), t)
        return acc

    return acc(acc, codes, scale, bias, types.intp, types.intp, kind, offset, most), gen


@intrinsic(prefer_literal=True)
def fma_dots_2(ty, acc, codes, scale0, scale1, bias0, bias1, x, at, kind, offset, most):
    """`fma_dots` with scales and biases of their own for the first and the last 16 codes.

    bias0 is that of the first less that of the last; the sum of the first 16 values lies 8n bytes after d, and the
    int32 at which the dots begin 16n and 20n.
    """
    mode, shift, run = literal(kind), 8 - literal(offset).bit_length(), host_cpu.products_of_16_bits(literal(most))

    def gen(c, b, s, a):
        acc, codes, scale0, scale1, bias0, bias1, x, at = a[:8]
        n = s.args[0].n
        d_at = b.add(x, at)
        vectors = _vectors(b, s.args[1], codes)
        begins = [dot_begins(b, d_at, n, k, shift if mode == PRELOADED else None) for k in (16, 20)]
        halves = [_dots(b, begins[i], vectors[4 * i : 4 * i + 4], x, 16 * i, run) for i in (0, 1)]
        for t, (first, last) in enumerate(zip(*halves, strict=True)):
            factors = [floats_of(b, s.args[i], value) for i, value in ((2, scale0), (3, scale1))]
            biases = [floats_of(b, s.args[i], value) for i, value in ((4, bias0), (5, bias1))]
            product = multiply_add(b, to_float(b, last), factors[1], b.fmul(to_float(b, first), factors[0]))
            sums = multiply_add(b, product, repeat(b, load_at(b, d_at, F32, 4 * t)), b.extract_value(acc, t))
            if mode == BIASED:
                sums = multiply_add(b, biases[1], repeat(b, load_at(b, d_at, F32, 4 * n + 4 * t)), sums)
                sums = multiply_add(b, biases[0], repeat(b, load_at(b, d_at, F32, 8 * n + 4 * t)), sums)
            acc = b.insert_value(acc, sums, t)
        return acc

    return acc(acc, codes, scale0, scale1, bias0, bias1, types.intp, types.intp, kind, offset, most), gen


def floats_of(b, kind, value):
    """16 floats: a value that is such a vector, or an address of one."""
    return load_at(b, value, V_F32) if isinstance(kind, types.Integer) else value


def fma_total(b, acc, total, scale, bias, d_at, n, t, mode):
    """Token t's acc + float(total) * scale * d [+ bias * s]; see `fma_dots`."""
    product = b.fmul(to_float(b, total), scale)
    sums = multiply_add(b, product, repeat(b, load_at(b, d_at, F32, 4 * t)), acc)
    if mode == BIASED:
        sums = multiply_add(b, bias, repeat(b, load_at(b, d_at, F32, 4 * n + 4 * t)), sums)
    return sums


def _vectors(b, kind, codes):
    """Functions that give each vector of codes: of a block, or from memory, read where the vector is needed."""
    if isinstance(kind, types.Integer):
        return [partial(load_at, b, codes, V_U8, 64 * j) for j in range(8)]
    return [partial(b.extract_value, codes, j) for j in range(8)]


def dot_begins(b, d_at, n, k, shift):
    """For each token where its dot begins: 0, or with a shift the int32 k * n bytes after d, shifted right by that."""
    for t in range(n):
        if shift is None:
            yield fill(V_I32, 0)
            continue
        begin = repeat(b, load_at(b, d_at, I32, k * n + 4 * t))
        yield b.ashr(begin, fill(V_I32, shift)) if shift else begin


def _dots(b, begins, vectors, x, offset, run):
    """For each token its begin and the dot of codes and the bytes at x + 32 t + offset: token by token, or all at once.

    run  as `host_cpu.products_of_16_bits` says
    """
    if not run:
        first = 0
        if host_cpu.level() == "i8mm":
            begins = list(begins)
            first = len(begins) // 2 * 2
            yield from _dots_of_pairs(b, begins[:first], vectors, x, offset)
            begins = begins[first:]
        for t, begin in enumerate(begins, first):
            yield _dot_token(b, begin, vectors, x, 32 * t + offset)
        return
    totals = list(begins)
    for first in range(0, len(vectors), run):
        sums = [fill(V_I16, 0)] * len(totals)
        for j, read in enumerate(vectors[first : first + run], first):
            vector = read()
            for t, so_far in enumerate(sums):
                four = b.bitcast(repeat(b, load_at(b, x, I32, 32 * t + offset + 4 * j)), V_U8)
                sums[t] = b.add(so_far, by_parts(b, "llvm.x86.avx2.pmadd.ub.sw", V_I16, 16, vector, four))
            sums = in_order(b, sums) if len(sums) > 1 else sums
        pairs = (pair_products(b, pair_sums, fill(V_I16, 1)) for pair_sums in sums)
        totals = [b.add(total, more) for total, more in zip(totals, pairs, strict=True)]
    yield from totals


def _dots_of_pairs(b, begins, vectors, x, offset):
    """`_dots` of an even number of tokens by products of matrices, 2 x 8 bytes with 8 x 2: usmmla.

    A matrix of codes has two rows' words of two vectors; its result is, of two rows, the sums of a token and the next.
    """
    rows = [[fill(ir.VectorType(I32, 4), 0)] * 8 for _ in range(0, len(begins), 2)]  # of rows 2 i and 2 i + 1 each
    for j in range(0, len(vectors), 2):
        words = [b.bitcast(read(), V_I32) for read in vectors[j : j + 2]]
        places = ([i, 16 + i, i + 1, 17 + i] for i in range(0, 16, 2))
        pairs = [b.bitcast(_shuffled(b, *words, lanes), ir.VectorType(I8, 16)) for lanes in places]
        for t, sums in enumerate(rows):
            two = [load_at(b, x, ir.VectorType(I8, 8), 32 * (2 * t + i) + offset + 4 * j) for i in (0, 1)]
            tokens = join_lanes(b, two)
            for i, codes in enumerate(pairs):
                sums[i] = call_llvm(b, "llvm.aarch64.neon.usmmla.v4i32.v16i8", sums[i].type, sums[i], codes, tokens)
    for t, sums in enumerate(rows):
        halves = [join_lanes(b, sums[i : i + 4]) for i in (0, 4)]
        for token in (0, 1):
            yield b.add(begins[2 * t + token], _shuffled(b, *halves, list(range(token, 32, 2))))


def _shuffled(b, x, y, lanes):
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def in_order(b, vectors):
    """The vectors, made before anything that comes after this.

    LLVM would make one token's sum after the other, and keep codes, which registers can't hold, in memory for that.
    """
    half = vectors[0].type.count // 2
    halves = [slice_lanes(b, v, i, half) for v in vectors for i in (0, half)]
    kind = halves[0].type
    places = ",".join(["=x"] * len(halves) + [str(i) for i in range(len(halves))])
    result = ir.LiteralStructType([kind] * len(halves))
    made = b.asm(ir.FunctionType(result, [kind] * len(halves)), "", places + ",~{memory}", halves, True)
    parts = [b.extract_value(made, i) for i in range(len(halves))]
    return [join_lanes(b, pair) for pair in zip(parts[::2], parts[1::2], strict=True)]


def _dot_token(b, total, vectors, x, offset):
    for j, read in enumerate(vectors):
        vector = read()
        four = b.bitcast(repeat(b, load_at(b, x, I32, offset + 4 * j)), V_U8)
        total = dot4(b, total, vector, four)
    return total


def dot4(b, acc, u8, s8):
    """acc[i] += the sum of four products of unsigned and signed bytes, for 16 lanes; emitted, not called.

    vpdpbusd with VNNI; else 16-bit products of even and odd bytes (pmaddwd), which can't overflow: 255 * 128 * 2 fits
    32 bits. usdot on Arm with i8mm, and with dotprod only sdot on codes moved to signed, and the move undone.
    """
    level = host_cpu.level()
    if level == "avx512vnni":
        return call_llvm(b, "llvm.x86.avx512.vpdpbusd.512", V_I32, acc, b.bitcast(u8, V_I32), b.bitcast(s8, V_I32))
    if level == "avxvnni":
        return _by_parts_i32(b, "llvm.x86.avx512.vpdpbusd.256", 8, acc, u8, s8)
    if level in ("i8mm", "dotprod"):
        return _dot4_arm(b, acc, u8, s8)
    even = [b.and_(b.bitcast(u8, V_I16), fill(V_I16, 255)), b.ashr(_shift16(b, s8), fill(V_I16, 8))]
    odd = [b.lshr(b.bitcast(u8, V_I16), fill(V_I16, 8)), b.ashr(b.bitcast(s8, V_I16), fill(V_I16, 8))]
    for x, y in (even, odd):
        acc = b.add(acc, pair_products(b, x, y))
    return acc


def _shift16(b, s8):
    return b.shl(b.bitcast(s8, V_I16), fill(V_I16, 8))


def pair_products(b, x, y):
    """<32 x i16> twice -> <16 x i32>: x[2i] y[2i] + x[2i+1] y[2i+1]."""
    if host_cpu.level() == "avx2":
        return by_parts(b, "llvm.x86.avx2.pmadd.wd", V_I32, 8, x, y)
    if host_cpu.level() == "x86-64":
        return by_parts(b, "llvm.x86.sse2.pmadd.wd", V_I32, 4, x, y)
    wide = ir.VectorType(I32, 32)
    products = b.mul(b.sext(x, wide), b.sext(y, wide))
    even, odd = (ir.Constant(V_I32, list(range(i, 32, 2))) for i in (0, 1))
    return b.add(b.shuffle_vector(products, products, even), b.shuffle_vector(products, products, odd))


def _by_parts_i32(b, name, lanes, acc, u8, s8):
    """A dot product whose byte operands are declared as <lanes x i32>."""
    parts = []
    for i in range(0, 16, lanes):
        words = [slice_lanes(b, b.bitcast(v, V_I32), i, lanes) for v in (acc, u8, s8)]
        parts.append(call_llvm(b, name, ir.VectorType(I32, lanes), *words))
    return join_lanes(b, parts)


def _dot4_arm(b, acc, u8, s8):
    mixed = host_cpu.level() == "i8mm"
    name = "usdot" if mixed else "sdot"
    parts = []
    for i in range(0, 16, 4):
        part, u, x = slice_lanes(b, acc, i, 4), slice_lanes(b, u8, 4 * i, 16), slice_lanes(b, s8, 4 * i, 16)
        if not mixed:  # u * x = (u - 128) * x + 128 * x
            u = b.xor(u, fill(u.type, -128))
            part = call_llvm(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", part.type, part, fill(u.type, 64), x)
            part = call_llvm(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", part.type, part, fill(u.type, 64), x)
        parts.append(call_llvm(b, f"llvm.aarch64.neon.{name}.v4i32.v16i8", part.type, part, u, x))
    return join_lanes(b, parts)
