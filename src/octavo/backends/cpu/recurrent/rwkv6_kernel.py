# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""RWKV-6's time mixing behind its projections: a matrix for each head of a sequence, and a norm of what it gives.

A task goes through the tokens of a sequence in order, for a head, so that results are to the bit the same however a
sequence is divided among steps.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.recurrent.kernel import WHERE, begin_of, end_of, known_by, moves, rows_changed
from octavo.backends.cpu.recurrent.rwkv7_kernel import row_normed
from octavo.jit.compile import inner, kernels
from octavo.jit.record import record
from octavo.jit.simd import (
    add,
    exp,
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
)

W0, U, WEIGHT, BIAS = range(4)
"""Where each vector is among `vectors`."""

WKV6 = record(
    "y y_stride r r_stride w w_stride k k_stride v v_stride", "vectors state heads eps:f4", WHERE
)


def _prepared(size: int) -> Any:
    """A function of a token and a head, `h` bytes into a row: it leaves decays, and gives the sum of r * u * k."""
    row = 4 * size

    def prepared(a, t, h, decays):
        vectors, whole, own = a.vectors + h, a.heads * row, splat(0.0)
        for at in range(0, row, 64):
            raw = exp(add(load_f32x16(a.w + t * a.w_stride + h + at), load_f32x16(vectors + W0 * whole + at)))
            store_f32x16(decays + at, exp(sub(splat(0.0), raw)))
            both = mul(load_f32x16(a.r + t * a.r_stride + h + at), load_f32x16(a.k + t * a.k_stride + h + at))
            own = fma(both, load_f32x16(vectors + U * whole + at), own)
        return sum_lanes(own)

    return inner(prepared, size, inline="always")


@kernels(WKV6)
def wkv6_kernel(size: int, wide: int) -> Any:
    """A sequence's tokens, for a head: its state [size, size] is on the stack, `wide` vectors of columns together."""
    row, part, whole = 4 * size, 64 * wide, 4 * size * size
    known_of, changed, (take, bring) = known_by(size, wide), rows_changed(size, wide, True), moves(size, size, wide)
    prepared, normed = _prepared(size), row_normed(size)

    def wkv6(a, task):
        sequence, head = task // a.heads, task % a.heads
        start, stop = begin_of(a, sequence), end_of(a, sequence)
        if start == stop:
            return
        state, h = a.state + (i32_pointer(a.slots)[sequence] * a.heads + head) * whole, head * row
        matrix, decays, y = stack(whole), stack(row), stack(row)
        fresh = i32_pointer(a.positions)[start] == 0
        for at in range(0, row, part):
            take(matrix + at * size, state + at, fresh)
        for t in range(start, stop):
            own, r, k = prepared(a, t, h, decays), a.r + t * a.r_stride + h, a.k + t * a.k_stride + h
            for at in range(0, row, part):
                value = load_block(a.v + t * a.v_stride + h + at, 64, wide)
                store_block(y + at, 64, fma_blocks(known_of(matrix + at * size, r), value, splat(own)))
                changed(matrix + at * size, decays, value, k, r)
            vectors = a.vectors + h
            weight, bias = vectors + WEIGHT * a.heads * row, vectors + BIAS * a.heads * row
            normed(y, weight, bias, a.eps)
            for at in range(0, row, 64):
                store_f32x16(a.y + t * a.y_stride + h + at, load_f32x16(y + at))
        for at in range(0, row, part):
            bring(state + at, matrix + at * size)

    return wkv6
