# mypy: ignore-errors
"""Products with few tokens whose activations stay floats: weights are dequantized in registers as they are read.

Algorithm: GEMV by dequantization in registers, as llama.cpp's older `dequantize_mul_mat_vec`.
Tile:
    program   block_n rows x `chunks` chunks of 32 codes, in turn along K
    a word    four codes -> four floats, times four float16 of each token; acc [block_n, chunks] a token
Bound: instructions, a conversion and a multiply-add for each code and token; not measured by itself.
Tried: nothing else (README.md beside the folder says what half2 arithmetic would lose).
Twin: `octavo.backends.reference.ops.mul_mat`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.weights.decode import E4M3_FACTOR, codes_of, e4m3_bits, half_pair, scales_of
from octavo.backends.gpu.weights.loads import load_or_zero


@triton.jit
def _values(x, word, mask):
    """Four activations for each word of four codes, float32 [1, W]; x points to pairs of float16 as int32."""
    x0, x1 = half_pair(load_or_zero(x + word, mask)[None, :])  # [1, words]
    x2, x3 = half_pair(load_or_zero(x + word + 1, mask)[None, :])  # [1, words]
    return x0, x1, x2, x3


@triton.jit
def _dot(codes, x, LAYOUT: tl.constexpr):
    """Sums of the four codes of each word [BLOCK_N, W] times their activations."""
    total = tl.zeros(codes.shape, tl.float32)
    for i in tl.static_range(4):
        if LAYOUT.float8:
            code = e4m3_bits(codes, i) * E4M3_FACTOR
        elif LAYOUT.signed or LAYOUT.table is not None:
            code = (codes << (24 - 8 * i)) >> 24
        else:
            code = (codes >> (8 * i)) & 0xFF
        total += (code.to(tl.float32) - LAYOUT.offset) * x[i]
    return total


@triton.jit
def _by_chunk(words, CHUNKS: tl.constexpr):
    """[N, 4 CHUNKS] -> sums of four words, [N, CHUNKS]."""
    return tl.sum(tl.reshape(words, (words.shape[0], CHUNKS, 4)), 2)


@triton.jit
def weight_only_kernel(w, x, y, n, TOKENS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr):
    """y f32 [TOKENS, N] = x W^T; x are pairs of float16 as int32 [TOKENS, kp / 2]."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    L: tl.constexpr = w.layout
    CHUNKS: tl.constexpr = shape.chunks
    EVEN: tl.constexpr = (L.kp // 32) % CHUNKS == 0
    at = tl.program_id(0) * shape.block_n + tl.arange(0, shape.block_n)
    row = tl.minimum(at, n - 1).to(tl.int64)[:, None]
    acc = ()
    for _t in tl.static_range(TOKENS):
        acc = acc + (tl.zeros((shape.block_n, CHUNKS), tl.float32),)  # noqa: RUF005
    for first in tl.static_range(0, L.kp // 32, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)[None, :]
        word = first * 4 + tl.arange(0, CHUNKS * 4)
        c_mask = None if EVEN else chunk < L.kp // 32
        w_mask = None if EVEN else word < L.kp // 8
        codes_mask = None if EVEN else (word < L.kp // 8)[None, :]
        low, high = codes_of(w, row, word[None, :], codes_mask, ASM)  # [BLOCK_N, 4 CHUNKS]
        s_low, s_high, m_low, m_high = scales_of(w, row, chunk, c_mask)  # [BLOCK_N, CHUNKS]
        pair = (word // 16) * 64 + (word % 16) * 2
        before = acc
        acc = ()
        for t in tl.static_range(TOKENS):
            x_low = _values(x.data + t * x.stride, pair, w_mask)  # four of [1, 4 CHUNKS]
            x_high = _values(x.data + t * x.stride, pair + 32, w_mask)
            sums = before[t] + s_low * _by_chunk(_dot(low, x_low, L), CHUNKS)
            sums += s_high * _by_chunk(_dot(high, x_high, L), CHUNKS)
            if L.has_min:
                sums -= m_low * _by_chunk(x_low[0] + x_low[1] + x_low[2] + x_low[3], CHUNKS)
                sums -= m_high * _by_chunk(x_high[0] + x_high[1] + x_high[2] + x_high[3], CHUNKS)
            acc = acc + (sums,)  # noqa: RUF005
    for t in tl.static_range(TOKENS):
        out = tl.sum(acc[t], 1)  # [BLOCK_N]
        if L.factor != 1.0:
            out *= L.factor
        tl.store(y.data + t * y.stride + at, out, mask=at < n)
