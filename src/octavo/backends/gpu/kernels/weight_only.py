"""Products with few tokens whose activations stay floats: weights are dequantized in registers as they are read."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.codes import half_pair, load_or_zero, look_up, low_and_high, scales


@triton.jit
def _values(x, word, mask):
    """Four activations for each word of four codes, float32 [1, W]; x points to pairs of float16 as int32."""
    x0, x1 = half_pair(load_or_zero(x + word, mask)[None, :])
    x2, x3 = half_pair(load_or_zero(x + word + 1, mask)[None, :])
    return x0, x1, x2, x3


@triton.jit
def _dot(codes, x, OFFSET: tl.constexpr, SIGNED: tl.constexpr):
    """Sums of the four codes of each word [BN, W] times their activations."""
    total = tl.zeros(codes.shape, tl.float32)
    for i in tl.static_range(4):
        code = (codes << (24 - 8 * i)) >> 24 if SIGNED else (codes >> (8 * i)) & 0xFF
        total += (code.to(tl.float32) - OFFSET) * x[i]
    return total


@triton.jit
def _by_chunk(words, N: tl.constexpr, BC: tl.constexpr):
    """[N, 4 BC] -> sums of four words, [N, BC]."""
    return tl.sum(tl.reshape(words, (N, BC, 4)), 2)


@triton.jit
def weight_only_kernel(
    codes8, codes4, codes2, codes1, scale, minimum, small, rest, table0, table1, table2, table3,
    x, y, n, x_stride, y_stride,
    kp: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, KIND: tl.constexpr,
    HAS_MIN: tl.constexpr, MIN_BITS: tl.constexpr, SIGNED: tl.constexpr, OFFSET: tl.constexpr, TABLE: tl.constexpr,
    T: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y f32 [T, N] = x W^T; x are pairs of float16 as int32 [T, kp / 2], `x_stride` pairs from token to token."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(at, n - 1).to(tl.int64)[:, None]
    EVEN: tl.constexpr = (kp // 32) % BC == 0
    acc = ()
    for _t in tl.static_range(T):
        acc = acc + (tl.zeros((BN, BC), tl.float32),)  # noqa: RUF005
    for first in tl.static_range(0, kp // 32, BC):
        chunk = first + tl.arange(0, BC)[None, :]
        word = first * 4 + tl.arange(0, BC * 4)
        c_mask = None if EVEN else chunk < kp // 32
        w_mask = None if EVEN else word < kp // 8
        codes_mask = None if EVEN else (word < kp // 8)[None, :]
        low, high = low_and_high(codes8, codes4, codes2, codes1, row, word[None, :], codes_mask, kp, BITS, SIGNED)
        if TABLE:
            table = (table0, table1, table2, table3)
            low, high = look_up(low, table, ASM, 1), look_up(high, table, ASM, 1)
        s_low, s_high, m_low, m_high = scales(
            scale, minimum, small, rest, row, chunk, kp, c_mask, G, S, KIND, HAS_MIN, MIN_BITS
        )
        pair = (word // 16) * 64 + (word % 16) * 2
        before = acc
        acc = ()
        for t in tl.static_range(T):
            x_low = _values(x + t * x_stride, pair, w_mask)
            x_high = _values(x + t * x_stride, pair + 32, w_mask)
            sums = before[t] + s_low * _by_chunk(_dot(low, x_low, OFFSET, SIGNED or TABLE), BN, BC)
            sums += s_high * _by_chunk(_dot(high, x_high, OFFSET, SIGNED or TABLE), BN, BC)
            if HAS_MIN:
                sums -= m_low * _by_chunk(x_low[0] + x_low[1] + x_low[2] + x_low[3], 1, BC)
                sums -= m_high * _by_chunk(x_high[0] + x_high[1] + x_high[2] + x_high[3], 1, BC)
            acc = acc + (sums,)  # noqa: RUF005
    for t in tl.static_range(T):
        out = tl.sum(acc[t], 1)
        if SIGNED:
            out *= 1.0 / (1 << (8 - BITS))
        tl.store(y + t * y_stride + at, out, mask=at < n)
