# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What routing to experts needs: choices, their numbers and sums of what was chosen.

Algorithm: top-k by selection: the largest again and again, over some dozens of values.
Tile:
    task t   row t: n logits -> k places; k rows of x, each times its share -> a row
Bound: latency: n is the number of experts; not measured by itself.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.top_k`, `octavo.backends.reference.ops.keep_groups`,
    `octavo.backends.reference.ops.weighted_sum`, `octavo.backends.reference.ops.sparse_shares`

Task t works on row t. Strides are in bytes, as in `kernel.py`.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.backends.cpu.pointwise.kernel import ROW
from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.simd import add, f32_pointer, i32_pointer, load_f32x16, stack, store_f32x16

ADD_ROWS = record(ROW, "rows ids k")


@kernels(ADD_ROWS)
def add_rows_kernel() -> Any:
    """Row t of x plus the ids[t]-th of `rows`, each of k values."""

    def add_rows(a, task):
        k = a.k
        y, x = a.y + task * a.y_stride, a.x + task * a.x_stride
        row = a.rows + i32_pointer(a.ids)[task] * k * 4
        for i in range(k // 16):
            store_f32x16(y + 64 * i, add(load_f32x16(x + 64 * i), load_f32x16(row + 64 * i)))
        ys, xs, rs = f32_pointer(y), f32_pointer(x), f32_pointer(row)
        for i in range(k // 16 * 16, k):
            ys[i] = xs[i] + rs[i]

    return add_rows


TOP_K = record("ids ids_stride x x_stride", "n k")


@kernels(TOP_K)
def top_k_kernel() -> Any:
    """The places of the k largest of n values, the largest first; of equals the lower place first."""

    def top_k(a, task):
        n, k = a.n, a.k
        ids, xs = i32_pointer(a.ids + task * a.ids_stride), f32_pointer(a.x + task * a.x_stride)
        for place in range(k):
            best = -1
            for i in range(n):
                taken = False
                for earlier in range(place):
                    taken = taken or ids[earlier] == i
                if not taken and (best < 0 or xs[i] > xs[best]):
                    best = i
            ids[place] = best

    return top_k


KEEP_GROUPS = record(ROW, "size used best")


@kernels(KEEP_GROUPS)
def keep_groups_kernel(groups: int) -> Any:
    """y = x in the `used` groups of `size` values whose `best`, one or two, sum highest; elsewhere -inf."""
    nbytes = groups * 4

    def keep_groups(a, task):
        ys, xs, size = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride), a.size
        sums = f32_pointer(stack(nbytes))
        for group in range(groups):
            first, second = -math.inf, -math.inf
            for i in range(group * size, (group + 1) * size):
                if xs[i] > first:
                    first, second = xs[i], first
                elif xs[i] > second:
                    second = xs[i]
            sums[group] = first + second if a.best == 2 else first
        for group in range(groups):
            better = 0
            for other in range(groups):
                if sums[other] > sums[group] or (other < group and sums[other] == sums[group]):
                    better += 1
            for i in range(group * size, (group + 1) * size):
                ys[i] = xs[i] if better < a.used else -math.inf

    return keep_groups


NUMBERS = record("y y_stride k")


@kernels(NUMBERS)
def numbers_kernel() -> Any:
    """int32 0 to k - 1."""

    def numbers(a, task):
        ys = i32_pointer(a.y + task * a.y_stride)
        for i in range(a.k):
            ys[i] = i

    return numbers


GATHER = record(ROW, "ids ids_stride k")


@kernels(GATHER)
def gather_kernel() -> Any:
    """y[i] = x[ids[i]], k values."""

    def gather(a, task):
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        ids = i32_pointer(a.ids + task * a.ids_stride)
        for i in range(a.k):
            ys[i] = xs[ids[i]]

    return gather


SPARSE_SHARES = record(ROW, "ids ids_stride n k tolerance:f4")


@kernels(SPARSE_SHARES)
def sparse_shares_kernel() -> Any:
    """y [k] = 1 / the sum of exp(x[j] - x[i]) over those of n values that are near x[i], for each i of ids."""

    def sparse_shares(a, task):
        n, tolerance = a.n, a.tolerance
        ys, xs = f32_pointer(a.y + task * a.y_stride), f32_pointer(a.x + task * a.x_stride)
        ids = i32_pointer(a.ids + task * a.ids_stride)
        for place in range(a.k):
            top, total = xs[ids[place]], 0.0
            for i in range(n):
                taken = False
                for earlier in range(place):
                    taken = taken or ids[earlier] == i
                if not taken and top - xs[i] <= tolerance * max(abs(xs[i]), top):
                    total += math.exp(xs[i] - top)
            ys[place] = 1.0 / total

    return sparse_shares


WEIGHTED_SUM = record(ROW, "weights weights_stride", "sums k n")


@kernels(WEIGHTED_SUM)
def weighted_sum_kernel() -> Any:
    """y [sums, n] = the sums of x [k, n] times weights [sums, k]."""

    def weighted_sum(a, task):
        k, n, xs = a.k, a.n, f32_pointer(a.x + task * a.x_stride)
        for each in range(a.sums):
            ys = f32_pointer(a.y + task * a.y_stride + each * n * 4)
            ws = f32_pointer(a.weights + task * a.weights_stride + each * k * 4)
            for i in range(n):
                total = 0.0
                for j in range(k):
                    total += xs[j * n + i] * ws[j]
                ys[i] = total

    return weighted_sum
