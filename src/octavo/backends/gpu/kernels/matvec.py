"""Products with one token or two: each weight is read once, and its codes multiplied with int8 activations by fours."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.codes import (
    MAGIC,
    MAGIC_FLOAT,
    dot4,
    load_or_zero,
    look_up,
    low_and_high,
    scaled,
    scales,
)


@triton.jit
def _load(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, table, row, first,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, SIGNED: tl.constexpr, TABLE: tl.constexpr, BC: tl.constexpr, ASM:
    tl.constexpr,
):  # fmt: skip
    """Codes and scales of BC chunks of the rows: words [BN, 4 BC] low and high, scales and minima [BN, BC] of both."""
    chunk = first + tl.arange(0, BC)[None, :]
    word = first * 4 + tl.arange(0, BC * 4)[None, :]
    EVEN: tl.constexpr = (kp // 32) % BC == 0
    w_mask = None if EVEN else word < kp // 8
    c_mask = None if EVEN else chunk < kp // 32
    low, high = low_and_high(codes8, codes4, codes2, codes1, row[:, None], word, w_mask, kp, BITS, SIGNED)
    if TABLE:
        low, high = look_up(low, table, ASM, 1), look_up(high, table, ASM, 1)
    s_low, s_high, m_low, m_high = scales(
        scale, minimum, small, rest, row[:, None], chunk, kp, c_mask, G, S, KIND, HAS_MIN, MIN_BITS
    )
    return low, high, s_low, s_high, m_low, m_high


@triton.jit
def _multiply(
    acc, loaded, xq, xd, xs, first, tp,
    kp: tl.constexpr, HAS_MIN: tl.constexpr, OFFSET: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """acc [BN, BC] + the products of the loaded chunks with a token's codes; xd and xs are its scales and sums."""
    low, high, s_low, s_high, m_low, m_high = loaded
    chunk = first + tl.arange(0, BC)
    word = first * 4 + tl.arange(0, BC * 4)
    EVEN: tl.constexpr = (kp // 32) % BC == 0
    w_mask = None if EVEN else word < kp // 8
    c_mask = None if EVEN else chunk < kp // 32
    x = xq + (word // 16) * 32 + word % 16
    x_low = tl.broadcast_to(load_or_zero(x, w_mask)[None, :], low.shape)
    x_high = tl.broadcast_to(load_or_zero(x + 16, w_mask)[None, :], high.shape)
    start = tl.full((BN, BC * 4), MAGIC // 4, tl.int32)
    sum_low = tl.sum(tl.reshape(dot4(low, x_low, start, ASM), (BN, BC, 4)), 2)
    sum_high = tl.sum(tl.reshape(dot4(high, x_high, start, ASM), (BN, BC, 4)), 2)
    group = (chunk // 4) * 4 + (chunk % 4) // 2
    d_low = load_or_zero(xd + group * tp, c_mask)[None, :]
    d_high = load_or_zero(xd + (group + 2) * tp, c_mask)[None, :]
    p_low = scaled(sum_low, d_low, d_low * -MAGIC_FLOAT)
    p_high = scaled(sum_high, d_high, d_high * -MAGIC_FLOAT)
    if OFFSET or HAS_MIN:
        sixteen = (chunk // 4) * 8 + chunk % 4
        xs_low = load_or_zero(xs + sixteen * tp, c_mask)[None, :]
        xs_high = load_or_zero(xs + (sixteen + 4) * tp, c_mask)[None, :]
        if OFFSET:
            p_low -= OFFSET * xs_low
            p_high -= OFFSET * xs_high
    acc += p_low * s_low + p_high * s_high
    if HAS_MIN:
        acc -= m_low * xs_low + m_high * xs_high
    return acc


@triton.jit
def matvec_kernel(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, table0, table1, table2, table3,
    xq, xd, xs, ids, term0, term1, y, n, tp, sharing, y_stride, stride0, stride1,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, SIGNED: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    T: tl.constexpr, TERMS: tl.constexpr, IDS: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, AHEAD: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y f32 [T, N] = x W^T + terms, x as `activations` has q8_1 (xq i32, xd, xs of 16).

    With IDS a program's second number is a token and expert: row i of y is W[ids[i]] of token i // sharing.
    AHEAD blocks of BC chunks are loaded before the values of an earlier kernel are waited for.
    """
    if PDL:
        gdc_launch_dependents()
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(at, n - 1).to(tl.int64)
    table = (table0, table1, table2, table3)
    if IDS:
        if PDL:
            gdc_wait()
        pair = tl.program_id(1)
        row += tl.load(ids + pair).to(tl.int64) * n
        token = pair // sharing
        y += pair.to(tl.int64) * y_stride
        xq += token.to(tl.int64) * (kp // 4)
        xd += token
        xs += token
    ahead = ()
    for i in tl.static_range(AHEAD):
        loaded = _load(codes8, codes4, codes2, codes1, scale, minimum, small, rest, table, row, i * BC,
                       kp, BITS, G, S, KIND, HAS_MIN, MIN_BITS, SIGNED, TABLE, BC, ASM)  # fmt: skip
        ahead = ahead + (loaded,)  # noqa: RUF005
    if PDL and not IDS:
        gdc_wait()
    acc = ()
    for t in tl.static_range(T):
        sums = tl.zeros((BN, BC), tl.float32)
        for i in tl.static_range(AHEAD):
            sums = _multiply(sums, ahead[i], xq + t * (kp // 4), xd + t, xs + t, i * BC, tp,
                             kp, HAS_MIN, OFFSET, BN, BC, ASM)  # fmt: skip
        acc = acc + (sums,)  # noqa: RUF005
    for first in tl.static_range(AHEAD * BC, kp // 32, BC):
        loaded = _load(codes8, codes4, codes2, codes1, scale, minimum, small, rest, table, row, first,
                       kp, BITS, G, S, KIND, HAS_MIN, MIN_BITS, SIGNED, TABLE, BC, ASM)  # fmt: skip
        before = acc
        acc = ()
        for t in tl.static_range(T):
            sums = _multiply(before[t], loaded, xq + t * (kp // 4), xd + t, xs + t, first, tp,
                             kp, HAS_MIN, OFFSET, BN, BC, ASM)  # fmt: skip
            acc = acc + (sums,)  # noqa: RUF005
    for t in tl.static_range(T):
        out = tl.sum(acc[t], 1)
        if SIGNED:
            out *= 1.0 / (1 << (8 - BITS))
        if TERMS > 0:
            out += tl.load(term0 + t * stride0 + at, mask=at < n, other=0.0)
        if TERMS > 1:
            out += tl.load(term1 + t * stride1 + at, mask=at < n, other=0.0)
        tl.store(y + t * y_stride + at, out, mask=at < n)
