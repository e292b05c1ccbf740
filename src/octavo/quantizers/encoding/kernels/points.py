# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Points of a grid and scales for super-blocks of 256 values: those that leave the least weighted squared error.

With a scale s, a point p leaves s (s A - 2 B) more than nothing at all would, where A = sum w p^2 and B = sum w x p do
not depend on s. So these are computed once for each point, and then every scale costs two operations a point: all
points are compared, for many scales of each group, for some of the super-block, for three levels of each group around
its wish. At last the super-block's scale is fitted to the points that came out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add_exact,
    f32_pointer,
    fma,
    i8_pointer,
    load_f32x16,
    splat,
    stack,
    store_f32x16,
    u8_pointer,
    u32_pointer,
)
from octavo.quantizers.encoding.kernels.search_lanes import min_within, minimum, where_less
from octavo.quantizers.encoding.kernels.tile import half

SUPER = 256
TRIALS = (0.84, 0.89, 0.93, 0.96, 0.98, 1.0, 1.03, 1.07)
"""The largest wish of a group over the largest scale, times these, are tried as the scale of a super-block."""

POINTS = record("x weights up supers share", "points squares scratch", "index marks sc d")
"""x, weights  float32 [supers, 256]; where marks are signs, without the sign that a value gets
up          float32 [supers]: what x was multiplied with
share       super-blocks of a task
points,
squares     float32 [2 or 1, width, points]: values of points without a mark and with one, and their squares
scratch     float32 [tasks, 256 / width, 2 or 1, 2, points]
index       made: uint32 [supers, 256 / width]
marks       made where points share them: uint8 [supers, 32]
sc, d       made: int8 [supers, 256 / group], float32 [supers]
"""


@dataclass(frozen=True)
class PointSearch:
    """What a search is specialised on.

    width, points  values of a point, and how many points there are
    group          values that share a scale
    top            the largest scale, odd
    shared         values that share a mark, 0 where each has its own: then `x` has no sign
    least, most    the range of a group's largest value in units of its scale, and how many scales are tried in it
    steps
    """

    width: int
    points: int
    group: int
    top: int
    shared: int
    least: float
    most: float
    steps: int

    @property
    def sets(self) -> int:
        """Sets of points: one for each mark that they share."""
        return 2 if self.shared else 1

    @property
    def group_bytes(self) -> int:
        """Bytes of A and -2 B of all points, for the parts of a group."""
        return self.group // self.width * self.sets * 8 * self.points

    @property
    def scratch_bytes(self) -> int:
        """Bytes of those of a super-block."""
        return SUPER // self.group * self.group_bytes


def _tabulate(search: PointSearch) -> Any:
    """A function (x, weights, points, squares, sums) that writes A and -2 B of every point, for `width` values."""
    width, count, sets = search.width, search.points, search.sets

    def tabulate(x, weights, points, squares, sums):
        values, factors = f32_pointer(x), f32_pointer(weights)
        for m in range(sets):
            set_at, out = m * width * count * 4, sums + m * 2 * count * 4
            for p in range(0, 4 * count, 64):
                a, b = splat(0.0), splat(0.0)
                for i in range(width):
                    at, w = set_at + i * count * 4 + p, factors[i]
                    a = fma(splat(w), load_f32x16(squares + at), a)
                    b = fma(splat(-2 * w * values[i]), load_f32x16(points + at), b)
                store_f32x16(out + p, a)
                store_f32x16(out + count * 4 + p, b)

    return inner(tabulate, search)


def _least(search: PointSearch) -> Any:
    """A function (sums of a set, scales, out) -> for each of four scales the least of s (s A - 2 B)."""
    end = 4 * search.points

    def least(sums, scales, out):
        s, found = f32_pointer(scales), stack(64)
        s0, s1, s2, s3 = splat(s[0]), splat(s[1]), splat(s[2]), splat(s[3])
        b0, b1, b2, b3 = splat(3e38), splat(3e38), splat(3e38), splat(3e38)
        for p in range(0, end, 64):
            a, b = load_f32x16(sums + p), load_f32x16(sums + end + p)
            b0, b1 = minimum(fma(s0, a, b), b0), minimum(fma(s1, a, b), b1)
            b2, b3 = minimum(fma(s2, a, b), b2), minimum(fma(s3, a, b), b3)
        lanes, to = f32_pointer(found), f32_pointer(out)
        store_f32x16(found, min_within(b0, 16))
        to[0] = lanes[0] * s[0]
        store_f32x16(found, min_within(b1, 16))
        to[1] = lanes[0] * s[1]
        store_f32x16(found, min_within(b2, 16))
        to[2] = lanes[0] * s[2]
        store_f32x16(found, min_within(b3, 16))
        to[3] = lanes[0] * s[3]

    return inner(least, search)


def _nearest(search: PointSearch) -> Any:
    """A function (sums of a set, scale) -> the number of the point with the least s A - 2 B, the first of equals."""
    end = 4 * search.points

    def nearest(sums, scale):
        room = stack(128)
        lanes, numbers = f32_pointer(room), f32_pointer(room + 64)
        for i in range(16):
            numbers[i] = i
        s, best, number, here = splat(scale), splat(3e38), splat(0.0), load_f32x16(room + 64)
        for p in range(0, end, 64):
            left = fma(s, load_f32x16(sums + p), load_f32x16(sums + end + p))
            number = where_less(left, best, here, number)
            best = minimum(left, best)
            here = add_exact(here, splat(16.0))
        store_f32x16(room, best)
        store_f32x16(room + 64, number)
        found = 0
        for i in range(1, 16):
            if lanes[i] < lanes[found] or (lanes[i] == lanes[found] and numbers[i] < numbers[found]):
                found = i
        return int(numbers[found])

    return inner(nearest, search)


def _errors(search: PointSearch) -> Any:
    """A function (sums of a group, scales, count, out) -> for each of `count` scales, a multiple of four, what the best
    points and marks leave, less what nothing would."""
    parts, sets, own = search.group // search.width, search.sets, search.shared == search.width
    least, set_bytes = _least(search), 8 * search.points

    def errors(sums, scales, count, out):
        room = stack(256)
        plain, marked, total = f32_pointer(room), f32_pointer(room + 128), f32_pointer(out)
        other = f32_pointer(stack(128))
        for k in range(count):
            total[k] = other[k] = 0.0
        for i in range(parts):
            here = sums + i * sets * set_bytes
            for k in range(0, 4 * count, 16):
                least(here, scales + k, room + k)
                if sets == 2:
                    least(here + set_bytes, scales + k, room + 128 + k)
            for k in range(count):
                if sets == 2 and own:
                    total[k] += min(plain[k], marked[k])
                else:
                    total[k] += plain[k]
                    other[k] += marked[k]
        if sets == 2 and not own:
            for k in range(count):
                total[k] = min(total[k], other[k])

    return inner(errors, search)


def _choose(search: PointSearch) -> Any:
    """A function (sums of a group, scale, index, marks, room) -> (A, -2 B) of its best points, which it stores."""
    parts, sets, own = search.group // search.width, search.sets, search.shared == search.width
    least, nearest, set_bytes, count = _least(search), _nearest(search), 8 * search.points, search.points

    def choose(sums, scale, index, marks, room):
        a_sum, b_sum, gain, step = 0.0, 0.0, 0.0, sets * set_bytes
        scales, left, gains = f32_pointer(room), f32_pointer(room + 64), f32_pointer(stack(128))
        if sets == 2:
            for k in range(4):
                scales[k] = scale
            for i in range(parts):
                least(sums + i * step, room, room + 64)
                gains[i] = left[0]
                least(sums + i * step + set_bytes, room, room + 64)
                gains[i] -= left[0]
                gain += gains[i]
        for i in range(parts):
            here = sums + i * step
            if sets == 2:
                mark = 1 if (gains[i] if own else gain) > 0 else 0
                u8_pointer(marks)[i] = 255 * mark
                here += mark * set_bytes
            number = nearest(here, scale)
            u32_pointer(index)[i] = number
            a_sum += f32_pointer(here)[number]
            b_sum += f32_pointer(here + 4 * count)[number]
        return a_sum, b_sum

    return inner(choose, search)


def _wish(search: PointSearch) -> Any:
    """A function (sums of a group, its largest value, index, marks, room) -> the scale that it would have.

    It is the best one tried, fitted to its points, which are stored as in `_choose`.
    """
    errors, choose, steps, most = _errors(search), _choose(search), search.steps, search.most
    ratio = (search.most / search.least) ** (1 / max(1, search.steps - 1))

    def wish(sums, peak, index, marks, room):
        scales, left = f32_pointer(room), f32_pointer(room + 128)
        for k in range(steps):
            scales[k] = peak / most if k == 0 else scales[k - 1] * ratio
        errors(sums, room, steps, room + 128)
        found = 0
        for k in range(1, steps):
            if left[k] < left[found]:
                found = k
        if not left[found] < 0:
            return 0.0
        a, b = choose(sums, scales[found], index, marks, room)
        return -0.5 * b / a

    return inner(wish, search)


def _as_stored(room, scale, up):
    """A scale as it comes back from an f16 of scale / up."""
    store_f32x16(room, half(splat(scale), splat(up)))
    return f32_pointer(room)[0]


def _level(wish, d, most):
    """The number s whose scale d (2 s + 1) is nearest to the wish."""
    return min(max(int((wish / d - 1) * 0.5 + 0.5), 0), most)


as_stored, level = inner(_as_stored), inner(_level)


def _super_scale(search: PointSearch) -> Any:
    """A function (sums, wishes, up, room) -> the best scale tried for a super-block."""
    errors, groups, top = _errors(search), SUPER // search.group, search.top
    group_bytes, trials, count, most_d = search.group_bytes, TRIALS, len(TRIALS), 65504.0

    def super_scale(sums, wishes, up, room):
        wish, scales, left = f32_pointer(wishes), f32_pointer(room), f32_pointer(room + 128)
        tried, totals = f32_pointer(stack(128)), f32_pointer(stack(128))
        widest = 0.0
        for g in range(groups):
            widest = max(widest, wish[g])
        for t in range(count):
            tried[t] = as_stored(room, min(widest * trials[t] / top, most_d * up), up)
            totals[t] = 0.0
        if not tried[0] > 0:
            return 0.0
        for g in range(groups):
            for t in range(count):
                scales[t] = tried[t] * (2 * level(wish[g], tried[t], (top - 1) // 2) + 1)
            errors(sums + g * group_bytes, room, count, room + 128)
            for t in range(count):
                totals[t] += left[t]
        found = 0
        for t in range(1, count):
            if totals[t] < totals[found]:
                found = t
        return tried[found] if totals[found] < 0 else 0.0

    return inner(super_scale, search)


def _group_scale(search: PointSearch) -> Any:
    """A function (sums of a group, wish, d, room) -> the best of three scales, in units of d, around the wish."""
    errors, most = _errors(search), (search.top - 1) // 2

    def group_scale(sums, wish, d, room):
        scales, left = f32_pointer(room), f32_pointer(room + 128)
        near = level(wish, d, most)
        for k in range(4):
            scales[k] = d * (2 * min(max(near - 1 + k % 3, 0), most) + 1)
        errors(sums, room, 4, room + 128)
        found = 1
        for k in range(0, 3, 2):
            if left[k] < left[found]:
                found = k
        return 2 * min(max(near - 1 + found, 0), most) + 1

    return inner(group_scale, search)


@kernels(POINTS)
def points_kernel(search: PointSearch) -> Any:
    """Task t encodes super-blocks share * t and on."""
    width, group, groups, scratch_bytes = search.width, search.group, SUPER // search.group, search.scratch_bytes
    part_bytes, group_bytes = search.sets * 8 * search.points, search.group_bytes
    tabulate, wish, choose = _tabulate(search), _wish(search), _choose(search)
    super_scale, group_scale = _super_scale(search), _group_scale(search)

    def encode(a, task):
        room, place = stack(256), stack(64)
        sums, wishes = a.scratch + task * scratch_bytes, f32_pointer(place)
        for block in range(task * a.share, min((task + 1) * a.share, a.supers)):
            x, weights = a.x + 1024 * block, a.weights + 1024 * block
            up, sc = f32_pointer(a.up)[block], i8_pointer(a.sc + block * groups)
            index, marks = a.index + block * (1024 // width), a.marks + block * 32
            for g in range(groups):
                peak = 0.0
                for i in range(g * group, (g + 1) * group):
                    peak = max(peak, abs(f32_pointer(x)[i]))
                for i in range(g * group, (g + 1) * group, width):
                    tabulate(x + 4 * i, weights + 4 * i, a.points, a.squares, sums + i // width * part_bytes)
                if peak > 0:
                    wishes[g] = wish(sums + g * group_bytes, peak, index, marks, room)
                else:
                    wishes[g] = 0.0
            d = super_scale(sums, place, up, room)
            a_sum, b_sum = 0.0, 0.0
            for g in range(groups):
                here = sums + g * group_bytes
                scale = group_scale(here, wishes[g], d, room) if d > 0 else 1
                sc[g] = scale
                part = choose(here, d * scale, index + 4 * g * (group // width), marks + g * group // 8, room)
                a_sum += scale * scale * part[0]
                b_sum += scale * part[1]
            if a_sum > 0 and b_sum < 0:
                fitted = as_stored(room, min(-0.5 * b_sum / a_sum, 65504.0 * up), up)
                if fitted * (fitted * a_sum + b_sum) < d * (d * a_sum + b_sum):
                    d = fitted
            f32_pointer(a.d)[block] = d / up

    return encode
