# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Rounding to a code: an integer of a range, or an entry of a table."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from numba.extending import intrinsic

from octavo.jit.simd.emit import AS_WRITTEN, V_F32, V_I32, f32x16, fill
from octavo.quantizers.encoding.kernels.search_lanes import clamp, round_even


@cache
def to_level(low, high, table):
    """An intrinsic: the level nearest to x, an integer from low to high, or an entry of a table.

    A table ascends, or its first half ascends from 0 and the second is its negative.
    """

    @intrinsic
    def level(ty, x):
        def gen(c, b, s, a):
            if table is None:
                return round_even(b, clamp(b, a[0], fill(V_F32, float(low)), fill(V_F32, float(high))))
            return _nearest(b, a[0], table, table)

        return f32x16(f32x16), gen

    return level


@cache
def to_code(low, high, table):
    """An intrinsic: the code of the level that `to_level` gives, counted from 0."""

    @intrinsic
    def code(ty, x):
        def gen(c, b, s, a):
            if table is None:
                level = round_even(b, clamp(b, a[0], fill(V_F32, float(low)), fill(V_F32, float(high))))
                return b.fadd(level, fill(V_F32, float(-low)), flags=AS_WRITTEN)
            return _nearest(b, a[0], table, range(len(table)))

        return f32x16(f32x16), gen

    return code


def _nearest(b, x, table, results):
    """results[i] for the entry i of the table that is nearest to x; for 0, the first of two."""
    half = len(table) // 2
    if table[half] > table[0]:
        return _steps(b, x, table, results)
    size = b.bitcast(b.and_(b.bitcast(x, V_I32), fill(V_I32, 0x7FFFFFFF)), V_F32)
    positive = _steps(b, size, table[:half], results[:half])
    negative = _steps(b, size, table[:half], results[half:])
    is_zero = b.fcmp_ordered("==", positive, fill(V_F32, float(results[0])))
    return b.select(b.or_(b.fcmp_ordered(">=", x, fill(V_F32, 0.0)), is_zero), positive, negative)


def _steps(b, x, table, results):
    """results[i] for the entry i of an ascending table that is nearest to x: a sum of the steps that x is above."""
    value = fill(V_F32, float(results[0]))
    zero = fill(V_F32, 0.0)
    for (below, above), (first, second) in zip(pairwise(table), pairwise(results), strict=True):
        passed = b.fcmp_ordered(">", x, fill(V_F32, (below + above) / 2))
        value = b.fadd(value, b.select(passed, fill(V_F32, float(second - first)), zero), flags=AS_WRITTEN)
    return value
