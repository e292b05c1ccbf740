# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""RWKV-7's time mixing after its projections: a state matrix for each head of a sequence, and a norm of its output.

Algorithm: the generalized delta rule of RWKV-7 (arXiv 2503.14456), token by token.
Tile:
    task   (sequence, head)    S [size, size] on the stack; for each token: S = decay S - (u rate)(S^T u)^T + k v^T,
                               y = norm(S^T r) + (r k R_K) v
           rows of S in fours, whose sums are apart, so that no addition waits for the one before it
Bound: instructions; not measured by itself. A whole model of 1.5 billion weights reads these at 45% of the read limit
    (bench/results/cpu-rwkv7-1.5b-q4_k_m-2026-11-27.json).
Tried: nothing else.
Twin: `octavo.backends.reference.state_ops.wkv7`

Each row of S has a decay; u is a key of length 1, for which S^T u is the value that S knows, and `rate` is how much of
that is removed. A task goes through the tokens of a sequence in order, for one head, so results are the same to the bit
however a sequence is divided among steps. The state is read and written once for all tokens of a step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float32

from octavo.backends.cpu.pointwise.math import gated
from octavo.backends.cpu.recurrent.kernel import ROWS, WHERE, begin_of, end_of, state_moves, state_times
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    add,
    add_blocks,
    exp,
    f32_pointer,
    fma,
    fma_blocks,
    i32_pointer,
    load_block,
    load_f32x16,
    mul,
    splat,
    stack,
    store_block,
    store_f32x16,
    sub,
    sum_lanes,
    zeros,
)

SLOWEST = np.float32(-math.exp(-0.5))
"""The logarithm of the strongest decay: the least that a row of S is multiplied with at a token."""
SHORTEST = np.float32(1e-12)
"""What keys that are shorter are divided by, in place of their length."""
W0, A0, K_K, K_A, R_K, WEIGHT, BIAS, V0 = range(8)
"""Where each vector is among `vectors` [7 or 8, heads * size]; V0 only where values are mixed."""

WKV7 = record(
    "y y_stride r r_stride w w_stride k k_stride v v_stride a a_stride first first_stride gate gate_stride",
    "vectors state heads eps:f4", WHERE,
)


def _state_update(size: int, wide: int) -> Any:
    """A function that updates `wide` vectors of columns of S, row by row, and gives S^T r for these columns.

    At `rows` are rows of `size` numbers: decays, factors of `known` (-u rate), factors of `value` (k), and r.
    """
    row = 64 * wide

    def step(m, known, value, rows, i):
        at = rows + 4 * i
        rest = fma_blocks(zeros(wide), load_block(m, 64, wide), splat(f32_pointer(at)[0]))
        rest = fma_blocks(rest, known, splat(f32_pointer(at)[size]))
        rest = fma_blocks(rest, value, splat(f32_pointer(at)[2 * size]))
        store_block(m, 64, rest)
        return rest

    step = inner(step, size, wide, inline="always")

    def update(matrix, known, value, rows):
        r = f32_pointer(rows + 12 * size)
        y0, y1, y2, y3 = zeros(wide), zeros(wide), zeros(wide), zeros(wide)
        for i in range(0, size, ROWS):
            m = matrix + i * row
            y0 = fma_blocks(y0, step(m, known, value, rows, i), splat(r[i]))
            y1 = fma_blocks(y1, step(m + row, known, value, rows, i + 1), splat(r[i + 1]))
            y2 = fma_blocks(y2, step(m + 2 * row, known, value, rows, i + 2), splat(r[i + 2]))
            y3 = fma_blocks(y3, step(m + 3 * row, known, value, rows, i + 3), splat(r[i + 3]))
        return add_blocks(add_blocks(y0, y1), add_blocks(y2, y3))

    return inner(update, size, wide, inline="always")


def _prepared(size: int, mixed: bool) -> Any:
    """A function of a token and a head, `h` bytes into a row: it fills six rows with what S is updated by.

    These are decays, -u rate, keys k, r, values v, and u. It returns the sum of r * k * R_K. If `mixed`, values move
    towards those of the first layer (`first`), by how much `gate` says.
    """
    row = 4 * size

    def prepared(a, t, h, rows):
        vectors, whole = a.vectors + h, a.heads * row
        total, own = splat(0.0), splat(0.0)
        for at in range(0, row, 64):
            x = mul(load_f32x16(a.k + t * a.k_stride + h + at), load_f32x16(vectors + K_K * whole + at))
            total = fma(x, x, total)
            store_f32x16(rows + 5 * row + at, x)
        scale = splat(float32(1.0) / max(float32(math.sqrt(sum_lanes(total))), SHORTEST))
        for at in range(0, row, 64):
            raw = add(load_f32x16(a.w + t * a.w_stride + h + at), load_f32x16(vectors + W0 * whole + at))
            store_f32x16(rows + at, exp(gated(splat(SLOWEST), raw)))
            raw = add(load_f32x16(a.a + t * a.a_stride + h + at), load_f32x16(vectors + A0 * whole + at))
            rate, unit = gated(splat(1.0), raw), mul(load_f32x16(rows + 5 * row + at), scale)
            store_f32x16(rows + 5 * row + at, unit)
            store_f32x16(rows + row + at, mul(sub(splat(0.0), unit), rate))
            k, r = load_f32x16(a.k + t * a.k_stride + h + at), load_f32x16(a.r + t * a.r_stride + h + at)
            key = fma(mul(k, sub(rate, splat(1.0))), load_f32x16(vectors + K_A * whole + at), k)
            store_f32x16(rows + 2 * row + at, key)
            store_f32x16(rows + 3 * row + at, r)
            own = fma(mul(r, key), load_f32x16(vectors + R_K * whole + at), own)
            v = load_f32x16(a.v + t * a.v_stride + h + at)
            if mixed:
                raw = add(load_f32x16(a.gate + t * a.gate_stride + h + at), load_f32x16(vectors + V0 * whole + at))
                v = add(v, gated(sub(load_f32x16(a.first + t * a.first_stride + h + at), v), raw))
            store_f32x16(rows + 4 * row + at, v)
        return sum_lanes(own)

    return inner(prepared, size, mixed, inline="always")


def row_normed(size: int) -> Any:
    """A function that normalizes a row in place (layer norm), with the weight and the bias at two addresses."""
    row = 4 * size

    def normed(y, weight, bias, eps):
        total = splat(0.0)
        for at in range(0, row, 64):
            total = add(total, load_f32x16(y + at))
        mean, squares = splat(sum_lanes(total) / size), splat(0.0)
        for at in range(0, row, 64):
            x = sub(load_f32x16(y + at), mean)
            squares = fma(x, x, squares)
        factor = splat(float32(1.0) / float32(math.sqrt(sum_lanes(squares) / size + eps)))
        for at in range(0, row, 64):
            x = mul(sub(load_f32x16(y + at), mean), factor)
            store_f32x16(y + at, fma(x, load_f32x16(weight + at), load_f32x16(bias + at)))

    return inner(normed, size, inline="always")


def _stored(size: int, normed: bool) -> Any:
    """A function that normalizes a head's row `y`, if `normed`, adds `own` times the row of values, and stores it."""
    row, with_norm = 4 * size, row_normed(size)

    def stored(a, t, h, y, values, own):
        if normed:
            vectors, whole = a.vectors + h, a.heads * row
            with_norm(y, vectors + WEIGHT * whole, vectors + BIAS * whole, a.eps)
        for at in range(0, row, 64):
            x = fma(splat(own), load_f32x16(values + at), load_f32x16(y + at))
            store_f32x16(a.y + t * a.y_stride + h + at, x)

    return inner(stored, size, normed, inline="always")


@kernels(WKV7)
def wkv7_kernel(size: int, wide: int, mixed: bool, normed: bool) -> Any:
    """A task takes one head through a sequence's tokens, with its state [size, size] on the stack.

    `wide` vectors of 16 columns are updated together. For `mixed` and `normed` see `_prepared` and `_stored`.
    """
    row, part, whole, six = 4 * size, 64 * wide, 4 * size * size, 24 * size
    times_key, update, (load_state, store_state) = (
        state_times(size, wide), _state_update(size, wide), state_moves(size, size, wide))
    prepared, stored = _prepared(size, mixed), _stored(size, normed)

    def wkv7(a, task):
        sequence, head = task // a.heads, task % a.heads
        start, stop = begin_of(a, sequence), end_of(a, sequence)
        if start == stop:
            return
        state, h = a.state + (i32_pointer(a.slots)[sequence] * a.heads + head) * whole, head * row
        matrix, rows, y = stack(whole), stack(six), stack(row)
        fresh = i32_pointer(a.positions)[start] == 0
        for at in range(0, row, part):
            load_state(matrix + at * size, state + at, fresh)
        for t in range(start, stop):
            own = prepared(a, t, h, rows)
            for at in range(0, row, part):
                known = times_key(matrix + at * size, rows + 5 * row)
                value = load_block(rows + 4 * row + at, 64, wide)
                store_block(y + at, 64, update(matrix + at * size, known, value, rows))
            stored(a, t, h, y, rows + 4 * row, own)
        for at in range(0, row, part):
            store_state(state + at, matrix + at * size)

    return wkv7
