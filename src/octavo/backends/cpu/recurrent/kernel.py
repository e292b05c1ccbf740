# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Ops that keep a state of each sequence: convolutions over time, the gated delta rule, and selective scans.

Algorithm: the recurrent form of the gated delta rule (arXiv 2412.06464), of Mamba-2 (arXiv 2405.21060) and of Mamba's
    selective scan (arXiv 2312.00752); causal conv1d.
Tile:
    task   (sequence, head, 32 columns)    S [keys, 32] on the stack, in the L1; for each token: S = decay S + k u^T
           rows of S in fours, whose sums are apart, so that no addition waits for the one before it
Bound: instructions, some four multiply-adds for a number of the state and token; not measured as a share.
Tried: nothing else.
Twin: `octavo.backends.reference.state_ops.causal_conv`, `octavo.backends.reference.state_ops.gated_delta_rule`,
    `octavo.backends.reference.state_ops.selective_scan`, `octavo.backends.reference.state_ops.channel_scan`

A task goes through the tokens of a sequence in order, for some channels or columns, so that results are to the bit the
same however a sequence is divided among steps.
"""

from __future__ import annotations

import math
from typing import Any

from numba import float32

from octavo.backends.cpu.pointwise.math import silu as silu_of
from octavo.backends.cpu.pointwise.math import soft_plus as soft_plus_of
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
    zeros,
)

CHANNELS = 256
"""Of a task of `causal_conv`."""
ROWS = 4
"""Of a state whose sums are apart, so that no addition waits for the one before it."""

WHERE = "positions starts slots decodes"
"""Where sequences lie: the first `decodes` own a token each."""


def _begin_of(a: Any, sequence: Any) -> Any:
    return sequence if sequence < a.decodes else i32_pointer(a.starts)[sequence - a.decodes]


def _end_of(a: Any, sequence: Any) -> Any:
    return sequence + 1 if sequence < a.decodes else i32_pointer(a.starts)[sequence - a.decodes + 1]


begin_of, end_of = inner(_begin_of, inline="always"), inner(_end_of, inline="always")

CAUSAL_CONV = record("y y_stride x x_stride", "taps bias state channels", WHERE)


@kernels(CAUSAL_CONV)
def causal_conv_kernel(width: int, filters: int, silu: bool, biased: bool) -> Any:
    """Sums of each channel's last `width` values times taps [width, filters, channels]; the state gets the last."""
    kept, part = width - 1, CHANNELS

    def causal_conv(a, task):
        parts, row = -(-a.channels // part), a.channels * 4
        sequence, first = task // parts, task % parts * part
        start, stop = begin_of(a, sequence), end_of(a, sequence)
        if start == stop:
            return
        state = a.state + i32_pointer(a.slots)[sequence] * kept * row
        fresh = i32_pointer(a.positions)[start] == 0
        begin, end = first * 4, min(first + part, a.channels) * 4
        for t in range(start, stop):
            for made in range(filters):
                for at in range(begin, end, 64):
                    total = load_f32x16(a.bias + made * row + at) if biased else splat(0.0)
                    for j in range(width):
                        source, tap = t - kept + j, load_f32x16(a.taps + (j * filters + made) * row + at)
                        if source >= start:
                            total = fma(load_f32x16(a.x + source * a.x_stride + at), tap, total)
                        elif not fresh:
                            total = fma(load_f32x16(state + (source - start + kept) * row + at), tap, total)
                    store_f32x16(a.y + t * a.y_stride + made * row + at, silu_of(total) if silu else total)
        for i in range(kept):
            source = stop - kept + i
            for at in range(begin, end, 64):
                value = splat(0.0)
                if source >= start:
                    value = load_f32x16(a.x + source * a.x_stride + at)
                elif not fresh:
                    value = load_f32x16(state + (source - start + kept) * row + at)
                store_f32x16(state + i * row + at, value)

    return causal_conv


def state_moves(keys: int, size: int, wide: int) -> tuple[Any, Any]:
    """Functions that load `wide` vectors of columns of a state [keys, size] into a matrix, zeros where it is `fresh`,
    and that store them back."""
    row, columns = 64 * wide, 4 * size

    def load_state(matrix, state, fresh):
        for i in range(keys):
            rest = zeros(wide) if fresh else load_block(state + i * columns, 64, wide)
            store_block(matrix + i * row, 64, rest)

    def store_state(state, matrix):
        for i in range(keys):
            store_block(state + i * columns, 64, load_block(matrix + i * row, 64, wide))

    names = keys, size, wide
    return inner(load_state, *names, inline="always"), inner(store_state, *names, inline="always")


def state_times(keys: int, wide: int) -> Any:
    """A function of a matrix [keys, 16 * wide] and k: the matrix's rows times k, summed."""
    row = 64 * wide

    def times_key(matrix, k):
        ks = f32_pointer(k)
        u0, u1, u2, u3 = zeros(wide), zeros(wide), zeros(wide), zeros(wide)
        for i in range(0, keys, ROWS):
            m = matrix + i * row
            u0 = fma_blocks(u0, load_block(m, 64, wide), splat(ks[i]))
            u1 = fma_blocks(u1, load_block(m + row, 64, wide), splat(ks[i + 1]))
            u2 = fma_blocks(u2, load_block(m + 2 * row, 64, wide), splat(ks[i + 2]))
            u3 = fma_blocks(u3, load_block(m + 3 * row, 64, wide), splat(ks[i + 3]))
        return add_blocks(add_blocks(u0, u1), add_blocks(u2, u3))

    return inner(times_key, keys, wide, inline="always")


def _row_decay(by_row: bool) -> Any:
    """A function that gives row i's decay: a number of its own at the address `decay`, or `decay` itself."""

    def of_row(decay, i):
        return splat(f32_pointer(decay)[i])

    def of_all(decay, i):
        return splat(decay)

    return inner(of_row if by_row else of_all, inline="always")


def state_update(keys: int, wide: int, by_row: bool = False) -> Any:
    """A function that decays a matrix and adds k times a change to it, and gives its rows times q, summed."""
    row, row_decay = 64 * wide, _row_decay(by_row)

    def step(m, decay, change, k):
        rest = fma_blocks(fma_blocks(zeros(wide), load_block(m, 64, wide), decay), change, splat(k))
        store_block(m, 64, rest)
        return rest

    step = inner(step, wide, inline="always")

    def update(matrix, decay, change, k, q):
        ks, qs = f32_pointer(k), f32_pointer(q)
        y0, y1, y2, y3 = zeros(wide), zeros(wide), zeros(wide), zeros(wide)
        for i in range(0, keys, ROWS):
            m = matrix + i * row
            y0 = fma_blocks(y0, step(m, row_decay(decay, i), change, ks[i]), splat(qs[i]))
            y1 = fma_blocks(y1, step(m + row, row_decay(decay, i + 1), change, ks[i + 1]), splat(qs[i + 1]))
            y2 = fma_blocks(y2, step(m + 2 * row, row_decay(decay, i + 2), change, ks[i + 2]), splat(qs[i + 2]))
            y3 = fma_blocks(y3, step(m + 3 * row, row_decay(decay, i + 3), change, ks[i + 3]), splat(qs[i + 3]))
        return add_blocks(add_blocks(y0, y1), add_blocks(y2, y3))

    return inner(update, keys, wide, by_row, inline="always")


def _soft_plus(x: Any) -> Any:
    return max(x, float32(0.0)) + math.log1p(math.exp(-abs(x)))


soft_plus = inner(_soft_plus, inline="always")

GATED_DELTA_RULE = record(
    "y y_stride q q_stride k k_stride v v_stride", "alpha alpha_stride beta beta_stride ssm_a dt_bias state",
    "heads key_heads", WHERE,
)


def _decays(keys: int, by_row: bool) -> Any:
    """A function that gives a head's decay at a token as `state_update` wants it, and what a matrix before it is
    multiplied with to know the value at k after it: an address of numbers, and one for all of them."""

    def of_head(a, t, head, rate, k, room):
        x = f32_pointer(a.alpha + t * a.alpha_stride)[head] + f32_pointer(a.dt_bias)[head]
        decay = math.exp(rate * soft_plus(x))
        return decay, k, decay

    def of_rows(a, t, head, rate, k, room):
        alpha, dt_bias = a.alpha + t * a.alpha_stride + head * keys * 4, a.dt_bias + head * keys * 4
        decayed_k = room + keys * 4
        for at in range(0, keys * 4, 64):
            x = add(load_f32x16(alpha + at), load_f32x16(dt_bias + at))
            decay = exp(mul(splat(rate), soft_plus_of(x)))
            store_f32x16(room + at, decay)
            store_f32x16(decayed_k + at, mul(decay, load_f32x16(k + at)))
        return room, decayed_k, float32(1.0)

    return inner(of_rows if by_row else of_head, keys, inline="always")


@kernels(GATED_DELTA_RULE)
def gated_delta_rule_kernel(keys: int, size: int, wide: int, tiled: bool, by_row: bool) -> Any:
    """A sequence's tokens, for a head and `wide` vectors of columns of its state [keys, size], kept on the stack.

    With `by_row` each row of the state has a decay of its own.
    """
    row, whole, columns, decays = 64 * wide, 64 * wide * keys, 4 * size, 8 * keys if by_row else 64
    times_key, update, decay_of = state_times(keys, wide), state_update(keys, wide, by_row), _decays(keys, by_row)
    load_state, store_state = state_moves(keys, size, wide)

    def gated_delta_rule(a, task):
        parts = columns // row
        pair, part = task // parts, task % parts
        sequence, head = pair // a.heads, pair % a.heads
        start, stop = begin_of(a, sequence), end_of(a, sequence)
        if start == stop:
            return
        state = a.state + (i32_pointer(a.slots)[sequence] * a.heads + head) * keys * columns + part * row
        matrix = stack(whole)
        load_state(matrix, state, i32_pointer(a.positions)[start] == 0)
        of_keys = (head % a.key_heads if tiled else head // (a.heads // a.key_heads)) * keys * 4
        at, rate, room = head * columns + part * row, f32_pointer(a.ssm_a)[head], stack(decays)
        for t in range(start, stop):
            beta = float32(1.0) / (float32(1.0) + math.exp(-f32_pointer(a.beta + t * a.beta_stride)[head]))
            k, q = a.k + t * a.k_stride + of_keys, a.q + t * a.q_stride + of_keys
            decay, decayed_k, factor = decay_of(a, t, head, rate, k, room)
            change = fma_blocks(zeros(wide), load_block(a.v + t * a.v_stride + at, 64, wide), splat(beta))
            change = fma_blocks(change, times_key(matrix, decayed_k), splat(-beta * factor))
            store_block(a.y + t * a.y_stride + at, 64, update(matrix, decay, change, k, q))
        store_state(state, matrix)

    return gated_delta_rule


SELECTIVE_SCAN = record(
    "y y_stride x x_stride b b_stride c c_stride", "dt dt_stride ssm_a dt_bias ssm_d state", "heads groups", WHERE
)


@kernels(SELECTIVE_SCAN)
def selective_scan_kernel(keys: int, size: int, wide: int) -> Any:
    """A sequence's tokens, for a head and `wide` vectors of columns of its state [keys, size], kept on the stack."""
    row, whole, columns = 64 * wide, 64 * wide * keys, 4 * size
    update, (load_state, store_state) = state_update(keys, wide), state_moves(keys, size, wide)

    def selective_scan(a, task):
        parts = columns // row
        pair, part = task // parts, task % parts
        sequence, head = pair // a.heads, pair % a.heads
        start, stop = begin_of(a, sequence), end_of(a, sequence)
        if start == stop:
            return
        state = a.state + (i32_pointer(a.slots)[sequence] * a.heads + head) * keys * columns + part * row
        matrix = stack(whole)
        load_state(matrix, state, i32_pointer(a.positions)[start] == 0)
        of_group, at = head // (a.heads // a.groups) * keys * 4, head * columns + part * row
        rate, dt_bias, ssm_d = f32_pointer(a.ssm_a)[head], f32_pointer(a.dt_bias)[head], f32_pointer(a.ssm_d)[head]
        for t in range(start, stop):
            step = soft_plus(f32_pointer(a.dt + t * a.dt_stride)[head] + dt_bias)
            b, c, x = a.b + t * a.b_stride + of_group, a.c + t * a.c_stride + of_group, a.x + t * a.x_stride + at
            change = fma_blocks(zeros(wide), load_block(x, 64, wide), splat(step))
            rows = update(matrix, math.exp(rate * step), change, b, c)
            store_block(a.y + t * a.y_stride + at, 64, fma_blocks(rows, load_block(x, 64, wide), splat(ssm_d)))
        store_state(state, matrix)

    return selective_scan


CHANNEL_SCAN = record("y y_stride x x_stride b b_stride c c_stride dt dt_stride", "ssm_a ssm_d state channels", WHERE)


@kernels(CHANNEL_SCAN)
def channel_scan_kernel(keys: int, wide: int) -> Any:
    """A sequence's tokens, for `wide` vectors of channels: their state and ssm_a [keys, 16 * wide] are on stack."""
    row, whole = 64 * wide, 64 * wide * keys

    def channel_scan(a, task):
        columns = a.channels * 4
        parts = columns // row
        sequence, at = task // parts, task % parts * row
        start, stop = begin_of(a, sequence), end_of(a, sequence)
        if start == stop:
            return
        state = a.state + i32_pointer(a.slots)[sequence] * keys * columns + at
        fresh = i32_pointer(a.positions)[start] == 0
        matrix, ssm_a = stack(whole), stack(whole)
        for i in range(keys):
            store_block(ssm_a + i * row, 64, load_block(a.ssm_a + at + i * columns, 64, wide))
            store_block(matrix + i * row, 64, zeros(wide) if fresh else load_block(state + i * columns, 64, wide))
        for t in range(start, stop):
            b, c = f32_pointer(a.b + t * a.b_stride), f32_pointer(a.c + t * a.c_stride)
            for part in range(0, row, 64):
                x = load_f32x16(a.x + t * a.x_stride + at + part)
                step = soft_plus_of(load_f32x16(a.dt + t * a.dt_stride + at + part))
                change, y = mul(step, x), mul(load_f32x16(a.ssm_d + at + part), x)
                for i in range(keys):
                    m = i * row + part
                    decay = exp(mul(load_f32x16(ssm_a + m), step))
                    rest = fma(decay, load_f32x16(matrix + m), mul(splat(b[i]), change))
                    store_f32x16(matrix + m, rest)
                    y = fma(rest, splat(c[i]), y)
                store_f32x16(a.y + t * a.y_stride + at + part, y)
        for i in range(keys):
            store_block(state + i * columns, 64, load_block(matrix + i * row, 64, wide))

    return channel_scan
