# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What sampling needs of rows of logits: the k largest and log-sum-exp; before these, penalties, biases and masks.

Algorithm: top-k by insertion into a short list, for blocks of 64 whose maximum is large enough; log-sum-exp.
Tile:
    task (row, part)   16,384 logits: | 64: maximum above the k-th so far? insert : skip | 64 | ...
    merge (row)        k candidates of each part, largest first -> k of the row
Bound: bytes of the logits, as nearly all blocks are skipped; not measured by itself.
Tried: nothing else.
Twin: `octavo.backends.reference.ops.top_candidates`, `octavo.backends.reference.ops.log_sum_exp`,
    `octavo.backends.reference.ops.adjust`, `octavo.backends.reference.ops.mask`

Where ranks divide the vocabulary, each has the candidates of its own columns, which `merge_ranks_kernel` joins. Strides
are in bytes, as in `pointwise/kernel.py`.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.backends.cpu.pointwise.kernel import ROWS_OF_K
from octavo.backends.cpu.pointwise.math import largest
from octavo.jit.argument_record import record
from octavo.jit.compile import exact, inner, kernels
from octavo.jit.simd import (
    add,
    exp,
    f32_pointer,
    fma,
    i32_pointer,
    load_f32x16,
    max_lanes,
    maximum,
    splat,
    sub,
    sum_lanes,
)

PART = 16384
"""Values of a row that a task looks at."""
BLOCK = 64
"""Values whose maximum is compared first."""

CANDIDATES = record("x x_stride n", "values places bad", "parts")


@inner
def insert(values, places, held, k, value, place):
    """Put a value into a list of at most k, largest first, after its equals. Returns how many the list then holds."""
    at = held if held < k else k - 1
    while at > 0 and values[at - 1] < value:
        values[at], places[at] = values[at - 1], places[at - 1]
        at -= 1
    values[at], places[at] = value, place
    return min(held + 1, k)


@kernels(CANDIDATES)
def candidates_kernel(k: int) -> Any:
    """The k largest values of a part of a row and their places, and how many are not finite; task: (row, part).

    values [T, parts, k], places [T, parts, k], bad [T, parts]. A part of fewer than k values has -inf after them.
    """

    def candidates(a, task):
        row, part = task // a.parts, task % a.parts
        first, end = part * PART, min((part + 1) * PART, a.n)
        x = a.x + row * a.x_stride
        xs = f32_pointer(x)
        values, places = f32_pointer(a.values + task * k * 4), i32_pointer(a.places + task * k * 4)
        for i in range(k):
            values[i], places[i] = -math.inf, 0
        held, zero, zeros = 0, splat(0.0), splat(0.0)
        whole = first + (end - first) // BLOCK * BLOCK
        for start in range(first, whole, BLOCK):
            top = load_f32x16(x + 4 * start)
            zeros = fma(top, zero, zeros)  # 0, or NaN where a value is not finite
            for i in range(16, BLOCK, 16):
                v = load_f32x16(x + 4 * (start + i))  # [16]
                top, zeros = maximum(v, top), fma(v, zero, zeros)
            if held < k or max_lanes(top) > values[k - 1]:
                for i in range(start, start + BLOCK):
                    if held < k or xs[i] > values[k - 1]:
                        held = insert(values, places, held, k, xs[i], i)
        finite = sum_lanes(zeros)
        for i in range(whole, end):
            finite += xs[i] * 0.0
            if held < k or xs[i] > values[k - 1]:
                held = insert(values, places, held, k, xs[i], i)
        bad = 0
        if finite != 0.0:
            for i in range(first, end):
                bad += not math.isfinite(xs[i])
        i32_pointer(a.bad)[task] = bad

    return candidates


MERGE = record("y y_stride", "values places bad", "parts")


@kernels(MERGE)
def merge_candidates_kernel(k: int) -> Any:
    """Row t int32 [1 + 2k] of op `top_candidates` from the candidates of its parts, which are largest first: how many
    values are not finite, places, and the bits of float32 values. A task is a row."""

    def merge_candidates(a, task):
        y, parts = a.y + task * a.y_stride, a.parts
        given = task * parts * k * 4
        values, places = f32_pointer(a.values + given), i32_pointer(a.places + given)
        best_places, best = i32_pointer(y + 4), f32_pointer(y + 4 * (1 + k))
        held, bad = 0, 0
        for part in range(parts):
            bad += i32_pointer(a.bad)[task * parts + part]
            for i in range(part * k, (part + 1) * k):
                if held == k and not values[i] > best[k - 1]:
                    break
                held = insert(best, best_places, held, k, values[i], places[i])
        i32_pointer(y)[0] = bad

    return merge_candidates


@kernels(ROWS_OF_K)
def log_sum_exp_kernel() -> Any:
    """y [1] = ln of the sum of exp(x), for x [K]; a task is a row."""

    def log_sum_exp(a, task):
        x, k = a.x + task * a.x_stride, a.k
        xs, top = f32_pointer(x), largest(x, k)
        sums, highest = splat(0.0), splat(top)
        for i in range(k // 16):
            sums = add(sums, exp(sub(load_f32x16(x + 64 * i), highest)))  # [16]
        total = sum_lanes(sums)
        for i in range(k // 16 * 16, k):
            total += math.exp(xs[i] - top)
        f32_pointer(a.y + task * a.y_stride)[0] = top + math.log(total)

    return log_sum_exp


MERGE_RANKS = record("y y_stride x x_stride", "firsts parts")


@kernels(MERGE_RANKS)
def merge_ranks_kernel(k: int) -> Any:
    """Row t int32 [1 + 2k] of op `top_candidates` from such rows of each rank, one after the other in x; the columns of
    rank i begin at firsts[i]. A task is a row."""

    def merge_ranks(a, task):
        y, x = a.y + task * a.y_stride, a.x + task * a.x_stride
        best_places, best = i32_pointer(y + 4), f32_pointer(y + 4 * (1 + k))
        held, bad = 0, 0
        for part in range(a.parts):
            given = x + part * (1 + 2 * k) * 4
            bad += i32_pointer(given)[0]
            places, values = i32_pointer(given + 4), f32_pointer(given + 4 * (1 + k))
            for i in range(k):
                if held == k and not values[i] > best[k - 1]:
                    break
                place = places[i] + i32_pointer(a.firsts)[part]
                held = insert(best, best_places, held, k, values[i], place)
        i32_pointer(y)[0] = bad

    return merge_ranks


@kernels(record("y places", "first count"))
def local_places_kernel() -> Any:
    """y int32 [A, 2] = places (row, column) as a rank counts them, which has `count` columns from `first` on.

    Columns are less `first`; the row is -1 where the rank does not have the column. A task is a place.
    """

    def local_places(a, task):
        places, y = i32_pointer(a.places + 8 * task), i32_pointer(a.y + 8 * task)
        column = places[1] - a.first
        y[0], y[1] = places[0] if 0 <= column < a.count else -1, column

    return local_places


ADJUST = record("x x_stride", "places changes")


@kernels(ADJUST)
def adjust_kernel() -> Any:
    """x[row, column] = x / scale where it is over 0, else x * scale (a repetition penalty), and plus a number (a bias).

    places is int32 [A, 2], changes float32 [A, 2]: scale and number. A task is a place; with row -1 it does nothing.
    """

    def adjust(a, task):
        row, column = i32_pointer(a.places)[2 * task], i32_pointer(a.places)[2 * task + 1]
        scale, more = f32_pointer(a.changes)[2 * task], f32_pointer(a.changes)[2 * task + 1]
        if row >= 0:
            xs = f32_pointer(a.x + row * a.x_stride)
            value = scaled(xs[column], scale)
            xs[column] = value + more

    return adjust


@exact
def scaled(value, scale):
    """A logit after a repetition penalty, rounded before anything is added: not part of a fused multiply-add."""
    return value / scale if value > 0 else value * scale


MASK = record("x x_stride n", "rows masks masks_stride words")


@kernels(MASK)
def mask_kernel() -> Any:
    """x[rows[t], j] = -inf where bit j % 32 of masks[t, j // 32] is not set. Task t is rows[t]; -1 is none."""

    def mask(a, task):
        row = i32_pointer(a.rows)[task]
        if row >= 0:
            xs, masks = f32_pointer(a.x + row * a.x_stride), i32_pointer(a.masks + task * a.masks_stride)
            for word in range(a.words):
                bits = masks[word]
                if bits != -1:
                    for j in range(32 * word, min(32 * word + 32, a.n)):
                        if not (bits >> (j % 32)) & 1:
                            xs[j] = -math.inf

    return mask
