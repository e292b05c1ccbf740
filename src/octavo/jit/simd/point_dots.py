"""Products of points of a grid and int8 activations where bytes are multiplied in pairs to 16 bits: AVX2.

Points are looked up as sizes, bytes that are not negative, and the signs of their values go to the activations. Sums of
several products fit 16 bits, because sizes are small; so this takes half the instructions of `fma_dots`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit.simd.codes import shift
from octavo.jit.simd.emit import (
    F32,
    I8,
    I16,
    I32,
    I64,
    V_I16,
    V_I32,
    V_U8,
    by_parts,
    f32x16,
    fill,
    i64,
    join_lanes,
    literal,
    load_at,
    multiply_add,
    repeat,
    store_at,
    to_float,
)

LARGEST_SUM = 32767


@dataclass(frozen=True)
class PointForm:
    """What a product with points is compiled for.

    width    values of a point, 8 or 4
    planes   bits of a number above eight
    largest  no size is above it
    offset   what values are less than sizes; 0 where marks are signs
    raised   without signs, how much more values of points without a mark are
    halves   the first and the last 16 values have scales of their own
    """

    width: int
    planes: int
    largest: int
    offset: int
    raised: int
    halves: bool

    @property
    def limit(self) -> int:
        """Vectors of products that 16 bits hold the sum of, two each."""
        return LARGEST_SUM // (2 * 127 * self.largest)


def fma_points_of(form: PointForm) -> Any:
    """The intrinsic for products of 16 rows x 32 values and n tokens."""

    @intrinsic
    def fma_points(ty, acc, numbers, points, marks, block, scale0, scale1, x, at):
        """acc[t] += float(dot of 32 values and token t's 32 bytes) * scale * d[t].

        numbers  address of bytes as `load_points` reads them, or of what `store_numbers` made of them
        points   address: for each number, a point's 8 sizes, or its 4 sizes twice
        marks    address: where marks are signs, of those that `mark_codes` reads; else of bytes whose bit `block` says
                 that a point has a mark
        x, at    activations as in `fma_dots`
        """

        def gen(c, b, s, a):
            acc, numbers, points, marks, block, scale0, scale1, x, at = a
            n = s.args[0].n
            number = partial(_number, b, numbers, form)
            signs = _signs(b, marks) if form.offset == 0 else None
            raised = None if signs else _raised(b, marks, block, form.raised)
            sums = [_Sums(b, form.limit, n) for _ in range(1 + form.halves)]
            for i in reversed(range(4)):  # of 8 values
                pair = (_wide_points if form.width == 8 else _narrow_points)(b, number, points, i)
                if raised is not None:
                    more = _of_point(b, raised, i)
                    pair = [b.add(sizes, more) for sizes in pair]
                for half in (1, 0):
                    j = 2 * i + half
                    sums[form.halves and i >= 2].add(pair[half], signs[j] if signs else None, x, 4 * j)
            d_at = b.add(x, at)
            for t in range(n):
                totals = [part.total(t, _begin(b, d_at, form, half, n, t)) for half, part in enumerate(sums)]
                product = b.fmul(to_float(b, totals[0]), scale0)
                if form.halves:
                    product = multiply_add(b, to_float(b, totals[1]), scale1, product)
                of_token = multiply_add(b, product, repeat(b, load_at(b, d_at, F32, 4 * t)), b.extract_value(acc, t))
                acc = b.insert_value(acc, of_token, t)
            return acc

        integers = [types.intp] * 4
        return acc(acc, *integers, f32x16, f32x16, types.intp, types.intp), gen

    return fma_points


@intrinsic(prefer_literal=True)
def store_numbers(ty, to, low, high, block, width, planes):
    """Numbers of points of a block of 16 rows x 32 values to memory, 16 bits each, as `fma_points_of` reads them.

    low, high, block  as `load_points` has them, with `planes` bits above eight
    """
    vectors, more = 8 // literal(width), literal(planes)

    def gen(c, b, s, a):
        to, low, high, block = a[:4]
        shift = b.trunc(block, I16)
        for v in range(vectors):
            bytes_ = load_at(b, low, V_U8, 64 * v)
            above = fill(V_U8, 0)
            for p in reversed(range(more)):
                above = b.or_(b.add(above, above), _bits_of_block(b, high, shift, 64 * (v * more + p)))
            for half in range(2):
                order = [16 * quarter + 8 * half + i // 2 + 64 * (i % 2) for quarter in range(4) for i in range(16)]
                words = b.shuffle_vector(bytes_, above, ir.Constant(ir.VectorType(I32, 64), order))
                store_at(b, to, words, 128 * v + 64 * half)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp, width, planes), gen


def _number(b, numbers, form, row, i):
    """Number i of a row of a block: a byte as it lies, or as `store_numbers` leaves it."""
    v, place = i // 4, row * 4 + i % 4
    if not form.planes:
        return load_at(b, numbers, I8, 64 * v + place)
    return load_at(b, numbers, I16, 128 * v + 64 * (place % 16 // 8) + place // 16 * 16 + 2 * (place % 8))


def _bits_of_block(b, address, shift, offset):
    """64 bytes of 0 or 1: bit `shift` of those at an address."""
    words = b.lshr(load_at(b, address, V_I16, offset), repeat(b, shift, 32))
    return b.and_(b.bitcast(words, V_U8), fill(V_U8, 1))


FIRST_ROWS = (0, 1, 4, 5, 8, 9, 12, 13)
"""Rows of a vector of points of 8 values; the others are two further on. So halves of both are rows in order."""

WORDS = ir.VectorType(I32, 4)


def _wide_points(b, number, points, i):
    """The sizes of points i of all rows, 8 values each: of the first four values, and of the others."""
    pair = []
    for more in (0, 2):
        quarters = []
        for row in FIRST_ROWS[::2]:
            first = load_at(b, _place(b, points, number(row + more, i)), I64)
            first = b.insert_element(ir.Constant(ir.VectorType(I64, 2), ir.Undefined), first, ir.Constant(I32, 0))
            # With the eight bytes before it, the second point is where it belongs
            both = load_at(b, _place(b, points, number(row + more + 1, i)), first.type, -8)
            quarters.append(b.shuffle_vector(first, both, ir.Constant(ir.VectorType(I32, 2), [0, 3])))
        pair.append(b.bitcast(join_lanes(b, quarters), V_I32))
    orders = [[4 * lane + 2 * (k % 2) + 16 * (k // 2) + half for lane in range(4) for k in range(4)] for half in (0, 1)]
    return [b.bitcast(b.shuffle_vector(*pair, ir.Constant(V_I32, order)), V_U8) for order in orders]


def _narrow_points(b, number, points, i):
    """The sizes of points 2 i and 2 i + 1 of all rows, 4 values each."""
    pair = []
    for point in (2 * i, 2 * i + 1):
        quarters = []
        for row in range(0, 16, 4):
            words = ir.Constant(WORDS, ir.Undefined)
            for lane in range(4):
                at = _place(b, points, number(row + lane, point))
                if lane == 0:
                    words = load_at(b, at, WORDS)
                else:
                    more = load_at(b, at, WORDS, 0 if lane < 2 else -8)
                    words = b.shuffle_vector(words, more, ir.Constant(WORDS, [j + 4 * (j == lane) for j in range(4)]))
            quarters.append(words)
        pair.append(b.bitcast(join_lanes(b, quarters), V_U8))
    return pair


def _place(b, points, number):
    return b.add(points, b.shl(b.zext(number, I64), i64(3)))


def _signs(b, marks):
    """For each vector of values, bytes that are negative where a value is, and nowhere 0."""
    bytes_ = load_at(b, marks, V_U8)
    return [b.or_(shift(b, bytes_, 7 - j), fill(V_U8, 1)) for j in range(8)]


def _raised(b, marks, block, by):
    """Bytes for 4 points of each row: `by` where they have no mark."""
    marked = _bits_of_block(b, marks, b.trunc(block, I16), 0)
    return b.and_(b.sub(marked, fill(V_U8, 1)), fill(V_U8, by))


def _of_point(b, bytes_, i):
    """Byte i of each row's four, four times."""
    order = ir.Constant(ir.VectorType(I32, 64), [lane // 4 * 4 + i for lane in range(64)])
    return b.shuffle_vector(bytes_, bytes_, order)


class _Sums:
    """Dots of n tokens: products of bytes are summed in 16 bits as long as these hold them, then in 32."""

    def __init__(self, b, limit, n):
        self.b, self.limit, self.count = b, limit, 0
        self.short, self.long = [None] * n, [None] * n

    def add(self, sizes, sign, x, offset):
        """Add the products of a vector of sizes and each token's four codes at x + offset."""
        b = self.b
        if self.count == self.limit:
            self._widen()
        for t in range(len(self.short)):
            four = b.bitcast(repeat(b, load_at(b, x, I32, 32 * t + offset)), V_U8)
            if sign is not None:
                four = by_parts(b, "llvm.x86.avx2.psign.b", V_U8, 32, four, sign)
            products = by_parts(b, "llvm.x86.avx2.pmadd.ub.sw", V_I16, 16, sizes, four)
            self.short[t] = products if self.short[t] is None else b.add(self.short[t], products)
        self.count += 1

    def _widen(self):
        b = self.b
        for t, short in enumerate(self.short):
            wide = by_parts(b, "llvm.x86.avx2.pmadd.wd", V_I32, 8, short, fill(V_I16, 1))
            self.long[t] = wide if self.long[t] is None else b.add(self.long[t], wide)
        self.short, self.count = [None] * len(self.short), 0

    def total(self, t, begin):
        """The sum of token t, from `begin` on."""
        if self.count:
            self._widen()
        return self.long[t] if begin is None else self.b.add(begin, self.long[t])


def _begin(b, d_at, form, half, n, t):
    """-offset times the sum of a token's codes, from -128 times that sum; None without an offset."""
    if form.offset == 0:
        return None
    at = (16 + 4 * half if form.halves else 12) * n + 4 * t
    of_sum = b.ashr(load_at(b, d_at, I32, at), ir.Constant(I32, 7))
    return repeat(b, b.mul(of_sum, ir.Constant(I32, form.offset)))
