# mypy: ignore-errors
"""Products of a few tokens of floats with weights that are e4m3 numbers, in groups that share a scale.

Algorithm: GEMV by dequantization in registers: e4m3's bits, moved, are a float32's.
Tile:
    program   block_n rows x `chunks` chunks of 32 codes, in turn along K; the next are loaded before these are
              multiplied, the first before PDL's wait
    x         four planes [kp / 4]: value i of each word of four codes, so that a lane's words and values lie alike
    acc       [block_n, chunks] float32 a token, summed over chunks at the end
Bound: bytes: one token takes 4.9 to 5.9 instructions a code, where the memory of an H200 leaves 6; docs/log.md,
    "Activations in planes keep a matvec of floats in registers".
Tried: docs/log.md: "Activations in planes keep a matvec of floats in registers".
Twin: `octavo.backends.reference.ops.mul_mat`, `octavo.backends.reference.ops.mul_mat_id`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.weights.decode import codes_of, e4m3_bits, scales_of
from octavo.backends.gpu.weights.loads import load_or_zero

FLOAT8_PLANES = 4
UP = tl.constexpr(2.0**90)  # times activations, and DOWN times sums: what makes up for the size of `e4m3_bits`
DOWN = tl.constexpr(2.0**30)


@triton.jit
def _load(w, row, first, CHUNKS: tl.constexpr, ASM: tl.constexpr):
    """Codes of the rows' chunks from `first` on, [BLOCK_N, 4 CHUNKS] words twice, and their scales, [BLOCK_N,
    CHUNKS]."""
    EVEN: tl.constexpr = (w.layout.kp // 32) % CHUNKS == 0
    chunk = first + tl.arange(0, CHUNKS)[None, :]
    word = first * 4 + tl.arange(0, CHUNKS * 4)[None, :]
    low, high = codes_of(w, row, word, None if EVEN else word < w.layout.kp // 8, ASM)
    s_low, s_high, _, _ = scales_of(w, row, chunk, None if EVEN else chunk < w.layout.kp // 32)
    return low, high, s_low, s_high


@triton.jit
def _dot(words, x, first, PLANE: tl.constexpr, CHUNKS: tl.constexpr, MASKED: tl.constexpr, HIGH: tl.constexpr):
    """Sums of the codes of each four words [BLOCK_N, 4 CHUNKS] times their values: [BLOCK_N, CHUNKS]."""
    word = first * 4 + tl.arange(0, CHUNKS * 4)
    mask = word < PLANE // 2 if MASKED else None
    total = tl.zeros(words.shape, tl.float32)
    for i in tl.static_range(4):
        value = load_or_zero(x + (i * PLANE + HIGH) + (word // 16) * 32 + word % 16, mask)  # [4 CHUNKS]
        total += e4m3_bits(words, i) * (value * UP)[None, :]
    return tl.sum(tl.reshape(total, (words.shape[0], CHUNKS, 4)), 2)


@triton.jit
def _multiply(acc, loaded, x, first, KP: tl.constexpr, CHUNKS: tl.constexpr):
    """acc [BLOCK_N, CHUNKS] + the products of the loaded chunks with a token."""
    low, high, s_low, s_high = loaded
    MASKED: tl.constexpr = (KP // 32) % CHUNKS != 0
    acc += s_low * _dot(low, x, first, KP // 4, CHUNKS, MASKED, 0)
    return acc + s_high * _dot(high, x, first, KP // 4, CHUNKS, MASKED, 16)


@triton.jit
def float8_matvec_kernel(
    w, x, experts, terms, y, n, TOKENS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr
):
    """y f32 [tokens, N] = x W^T + terms; x f32 [tokens, 4, kp / 4] are planes. A program's second number is that of
    TOKENS tokens; with `experts` of a row of y: row i is W[ids[i]] of token i // sharing."""
    if PDL:
        gdc_launch_dependents()
    KP: tl.constexpr = w.layout.kp
    CHUNKS: tl.constexpr = shape.chunks
    at = tl.program_id(0) * shape.block_n + tl.arange(0, shape.block_n)
    row = tl.minimum(at, n - 1).to(tl.int64)[:, None]
    to = (tl.program_id(1) * TOKENS).to(tl.int64)
    token = to
    if experts is not None:
        if PDL:
            gdc_wait()
        row += tl.load(experts.ids + to).to(tl.int64) * n
        token = to // experts.sharing
    ahead = _load(w, row, 0, CHUNKS, ASM)
    if PDL and experts is None:
        gdc_wait()
    acc = ()
    for _t in tl.static_range(TOKENS):
        acc = acc + (tl.zeros((shape.block_n, CHUNKS), tl.float32),)  # noqa: RUF005
    for first in tl.static_range(0, KP // 32, CHUNKS):
        loaded = ahead
        if first + CHUNKS < KP // 32:
            ahead = _load(w, row, first + CHUNKS, CHUNKS, ASM)
        before = acc
        acc = ()
        for t in tl.static_range(TOKENS):
            sums = _multiply(before[t], loaded, x + (token + t) * KP, first, KP, CHUNKS)
            acc = acc + (sums,)  # noqa: RUF005
    for t in tl.static_range(TOKENS):
        out = tl.sum(acc[t], 1) * DOWN  # [BLOCK_N]
        for i in tl.static_range(len(terms)):
            out += tl.load(terms[i].data + (to + t) * terms[i].stride + at, mask=at < n, other=0.0)  # [BLOCK_N]
        tl.store(y.data + (to + t) * y.stride + at, out, mask=at < n)
