# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of codebook entries and int8 activations where bytes are multiplied in pairs to 16 bits: AVX2.

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
from octavo.jit.simd.dots import in_order
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
from octavo.jit.simd.grids import nibbles_to_float, upper_bits

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
    def fma_points(ty, acc, numbers, points, marks, small, d, x, at):
        """acc[t] += float(dot of 32 values and token t's 32 bytes) * (2 s + 1) * d * token t's scale.

        numbers  address of bytes as `load_points` reads them, or of what `store_numbers` made of them
        points   address: for each number, a point's 8 sizes, or its 4 sizes twice
        marks    address: where marks are signs, among those `mark_codes` reads; else of what numbers have above
                 eight bits, as `load_points` reads it
        small    address of 8 bytes for each group: the numbers s of 4 bits of 16 rows, as `load_nibbles_x16` reads them
        x, at    activations as in `fma_dots`
        """

        def gen(c, b, s, a):
            acc, numbers, points, marks, small, d, x, at = a
            n = s.args[0].n
            number = partial(_number, b, numbers, form)
            bytes_ = load_at(b, marks, V_U8) if form.offset == 0 else None
            raised = _raised(b, marks, form) if bytes_ is None else None
            sums = [_Sums(b, form.limit, n) for _ in range(1 + form.halves)]
            for i in reversed(range(4)):  # of 8 values
                pair = (_wide_points if form.width == 8 else _narrow_points)(b, number, points, i)
                if raised is not None:
                    more = _of_point(b, raised, i)
                    pair = [b.add(sizes, more) for sizes in pair]
                here = sums[form.halves and i >= 2]
                for half in (1, 0):
                    j = 2 * i + half
                    sign = _sign(b, bytes_, j) if bytes_ is not None else None
                    here.add(pair[half], sign, x, 4 * j)
                here.short = in_order(b, here.short)  # so that what 8 rows take does not wait for the others in memory
            d_at, twice = b.add(x, at), b.fadd(d, d)
            scales = [multiply_add(b, nibbles_to_float(b, small, 8 * g), twice, d) for g in range(1 + form.halves)]
            for t in range(n):
                totals = [part.total(t, _begin(b, d_at, form, half, n, t)) for half, part in enumerate(sums)]
                product = b.fmul(to_float(b, totals[0]), scales[0])
                if form.halves:
                    product = multiply_add(b, to_float(b, totals[1]), scales[1], product)
                of_token = multiply_add(b, product, repeat(b, load_at(b, d_at, F32, 4 * t)), b.extract_value(acc, t))
                acc = b.insert_value(acc, of_token, t)
            return acc

        return acc(acc, *[types.intp] * 4, f32x16, types.intp, types.intp), gen

    return fma_points


@intrinsic(prefer_literal=True)
def store_numbers(ty, to, low, high, width, more, planes):
    """Numbers of points of a block of 16 rows x 32 values to memory, 16 bits each, as `fma_points_of` reads them.

    low, high, more  as `load_points` has them; of what is above eight bits `planes` bits belong to the numbers
    """
    vectors, above_eight, mask = 8 // literal(width), literal(more), (1 << literal(planes)) - 1

    def gen(c, b, s, a):
        to, low, high = a[:3]
        for v in range(vectors):
            bytes_ = load_at(b, low, V_U8, 64 * v)
            above = b.and_(upper_bits(b, high, v, above_eight), fill(V_U8, mask))
            for half in range(2):
                order = [16 * quarter + 8 * half + i // 2 + 64 * (i % 2) for quarter in range(4) for i in range(16)]
                words = b.shuffle_vector(bytes_, above, ir.Constant(ir.VectorType(I32, 64), order))
                store_at(b, to, words, 128 * v + 64 * half)
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, width, more, planes), gen


def _number(b, numbers, form, row, i):
    """Number i of a row of a block: a byte as it lies, or as `store_numbers` leaves it."""
    v, place = i // 4, row * 4 + i % 4
    if not form.planes:
        return load_at(b, numbers, I8, 64 * v + place)
    return load_at(b, numbers, I16, 128 * v + 64 * (place % 16 // 8) + place // 16 * 16 + 2 * (place % 8))


FIRST_ROWS = (0, 1, 4, 5, 8, 9, 12, 13)
"""Rows of a vector of points of 8 values; the others are two further on. So halves of both are rows in order."""

PAIR, WORDS = ir.VectorType(I64, 2), ir.VectorType(I32, 4)


def _wide_points(b, number, points, i):
    """The sizes of points i of all rows, 8 values each: of the first four values, and of the others."""
    pair = []
    for more in (0, 2):
        quarters = []
        for row in FIRST_ROWS[::2]:
            first = load_at(b, _place(b, points, number(row + more, i)), PAIR)
            # With the eight bytes before it, the second point is where it belongs
            both = load_at(b, _place(b, points, number(row + more + 1, i)), PAIR, -8)
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


def _sign(b, marks, j):
    """For vector j of values, bytes that are negative where a value is, and nowhere 0."""
    return b.or_(shift(b, marks, 7 - j), fill(V_U8, 1))


def _raised(b, high, form):
    """Bytes for 4 points of each row: `raised` where they have no mark."""
    mark = b.and_(upper_bits(b, high, 0, form.planes + 1), fill(V_U8, 1 << form.planes))
    unmarked = b.sext(b.icmp_unsigned("==", mark, fill(V_U8, 0)), V_U8)
    return b.and_(unmarked, fill(V_U8, form.raised))


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
