# mypy: ignore-errors
"""Products with one token or two: each weight is read once, and its codes multiplied with int8 activations by fours.

Algorithm: llama.cpp's MMVQ: quantized weights times q8_1 activations by dp4a.
Tile:
    program   block_n rows x `chunks` chunks of 32 codes, in turn along K; `prefetch` of them loaded before PDL's wait
    a chunk   | 16 low codes | 16 high codes |   of a tile of 128: four words of four codes, two scales
    acc       [block_n, chunks] float32, summed over chunks at the end
Bound: bytes, for Q4_K on small matrices instructions: one token reads 73% (4096 x 4096) to 98% (128256 x 4096) of the
    read limit on an H100 with Q4_K, 83 to 99% with Q8_0 (bench/results/gpu-ops-2026-11-21.json).
Tried: docs/log.md: "One token's products do not like single rows"; "A ring in shared memory was no faster for one token
    than loads into registers"; "Fetching weights into the L2 ahead of products made steps slower"; "ptxas loads what is
    used last after what is used first has come"; "Zero points cost what is loaded after the wait for an earlier
    kernel".
Twin: `octavo.backends.reference.ops.mul_mat`, `octavo.backends.reference.ops.mul_mat_id`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.launch.arguments import Q8Activation
from octavo.backends.gpu.matmul.matvec.int8_dot import MAGIC, MAGIC_FLOAT, dot4, dot4_unsigned, scaled
from octavo.backends.gpu.weights.decode import codes_of, scales_and_zeros_of, scales_of
from octavo.backends.gpu.weights.loads import load_or_zero


@triton.constexpr_function
def _raised(layout, asm):
    """Whether high codes are multiplied where they lie, 16 times as large, which saves a shift for four of them."""
    return layout.bits == 4 and not layout.signed and not layout.table and asm in ("ptx", "none")


@triton.jit
def _load(w, row, first, CHUNKS: tl.constexpr, ASM: tl.constexpr):
    """Codes and scales of the rows' chunks from `first` on, of 32 codes each."""
    EVEN: tl.constexpr = (w.layout.kp // 32) % CHUNKS == 0
    chunk = first + tl.arange(0, CHUNKS)[None, :]
    word = first * 4 + tl.arange(0, CHUNKS * 4)[None, :]
    w_mask = None if EVEN else word < w.layout.kp // 8
    c_mask = None if EVEN else chunk < w.layout.kp // 32
    if _raised(w.layout, ASM):
        both = load_or_zero(w.codes4 + row[:, None] * (w.layout.kp // 8) + word, w_mask)  # [BLOCK_N, 4 CHUNKS]
        low, high = both & 0x0F0F0F0F, both & -0x0F0F0F10
    else:
        low, high = codes_of(w, row[:, None], word, w_mask, ASM)  # [BLOCK_N, 4 CHUNKS]
    if w.layout.has_zero:
        s_low, s_high, m_low, m_high = scales_and_zeros_of(w, row[:, None], chunk, c_mask, ASM)  # [BLOCK_N, CHUNKS]
    else:
        s_low, s_high, m_low, m_high = scales_of(w, row[:, None], chunk, c_mask)  # [BLOCK_N, CHUNKS]
    return low, high, s_low, s_high, m_low, m_high


@triton.jit
def _both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _sums(a, b):
    """Sums of fours of two tensors [N, 4 C], at once so that both lie alike: [N, C] each."""
    N: tl.constexpr = a.shape[0]
    C: tl.constexpr = a.shape[1] // 4
    return tl.reduce((tl.reshape(a, (N, C, 4)), tl.reshape(b, (N, C, 4))), 2, _both)


@triton.jit
def _less_zero(total, of_token, zero, TIMES: tl.constexpr):
    """total less TIMES a zero point times the sum of a token's codes; both integers are counted from MAGIC on.

    The numbers of 1.5 * 2^23 and about it are whole, so nothing is rounded.
    """
    less = tl.fma(of_token.to(tl.float32, bitcast=True), -TIMES, TIMES * MAGIC_FLOAT)
    return tl.fma(zero, less, total.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)


@triton.jit
def _token(x, token: tl.constexpr, first, LAYOUT: tl.constexpr, CHUNKS: tl.constexpr, WHOLE: tl.constexpr):
    """A token's codes for the chunks from `first` on, [4 CHUNKS] twice, their scales and the sums of 16 values,
    [CHUNKS] each."""
    EVEN: tl.constexpr = (LAYOUT.kp // 32) % CHUNKS == 0
    chunk = first + tl.arange(0, CHUNKS)
    word = first * 4 + tl.arange(0, CHUNKS * 4)
    w_mask = None if EVEN else word < LAYOUT.kp // 8
    c_mask = None if EVEN else chunk < LAYOUT.kp // 32
    # Added one by one, as in the weights' address: the parts are then computed once for both.
    codes = x.codes + token * (LAYOUT.kp // 4) + (word // 16) * 32 + word % 16
    x_low, x_high = load_or_zero(codes, w_mask), load_or_zero(codes + 16, w_mask)
    group = (chunk // 4) * 4 + (chunk % 4) // 2
    d_low = load_or_zero(x.scale + token + group * x.stride, c_mask)
    d_high = load_or_zero(x.scale + token + (group + 2) * x.stride, c_mask)
    xs_low, xs_high = d_low, d_high
    if LAYOUT.offset or (LAYOUT.has_min and not (LAYOUT.has_zero and WHOLE)):
        sixteen = (chunk // 4) * 8 + chunk % 4
        xs_low = load_or_zero(x.sums16 + token + sixteen * x.stride, c_mask)
        xs_high = load_or_zero(x.sums16 + token + (sixteen + 4) * x.stride, c_mask)
    return x_low, x_high, d_low, d_high, xs_low, xs_high


@triton.jit
def _bits_of(of_token):
    """The bits of scales and sums of a part of a token, together."""
    _, _, d_low, d_high, xs_low, xs_high = of_token
    low = d_low.to(tl.int32, bitcast=True) | xs_low.to(tl.int32, bitcast=True)
    return low | d_high.to(tl.int32, bitcast=True) | xs_high.to(tl.int32, bitcast=True)


@triton.jit
def _multiply(
    acc, loaded, of_token, none, LAYOUT: tl.constexpr, CHUNKS: tl.constexpr, ASM: tl.constexpr, WHOLE: tl.constexpr
):
    """acc [BLOCK_N, CHUNKS] + the products of the loaded chunks with a token; `none` [CHUNKS] is zeros, or None.

    WHOLE: zero points, which m_low and m_high are then, are subtracted from whole numbers, with sums of the token's
    codes, which cost registers.
    """
    low, high, s_low, s_high, m_low, m_high = loaded
    x_low, x_high, d_low, d_high, xs_low, xs_high = of_token
    N: tl.constexpr = acc.shape[0]
    x_low = tl.broadcast_to(x_low[None, :], low.shape)  # [BLOCK_N, 4 CHUNKS]
    x_high = tl.broadcast_to(x_high[None, :], high.shape)  # [BLOCK_N, 4 CHUNKS]
    start = tl.full((N, CHUNKS * 4), MAGIC // 4, tl.int32)
    if none is not None:
        start += tl.reshape(tl.broadcast_to(none[None, :, None], (N, CHUNKS, 4)), (N, CHUNKS * 4))
    TIMES: tl.constexpr = 16.0 if _raised(LAYOUT, ASM) else 1.0
    BELOW: tl.constexpr = 128.0 if LAYOUT.signed else 0.0
    sum_low = dot4(low, x_low, start, ASM)
    sum_high = dot4_unsigned(high, x_high, start, ASM) if TIMES > 1 else dot4(high, x_high, start, ASM)
    if LAYOUT.has_zero and WHOLE:
        ones = tl.full((N, CHUNKS * 4), 0x01010101, tl.int32)
        sum_low, of_low = _sums(sum_low, dot4(ones, x_low, start, ASM))  # [BLOCK_N, CHUNKS]
        sum_high, of_high = _sums(sum_high, dot4(ones, x_high, start, ASM))  # [BLOCK_N, CHUNKS]
        sum_low = _less_zero(sum_low, of_low, m_low - BELOW, 1.0)
        sum_high = _less_zero(sum_high, of_high, m_high - BELOW, TIMES)
    else:
        sum_low = tl.sum(tl.reshape(sum_low, (N, CHUNKS, 4)), 2)  # [BLOCK_N, CHUNKS]
        sum_high = tl.sum(tl.reshape(sum_high, (N, CHUNKS, 4)), 2)  # [BLOCK_N, CHUNKS]
    d_low, d_high, xs_low, xs_high = d_low[None, :], d_high[None, :], xs_low[None, :], xs_high[None, :]  # [1, CHUNKS]
    if TIMES > 1:
        d_high *= 1 / TIMES
    p_low = scaled(sum_low, d_low, d_low * -MAGIC_FLOAT)
    p_high = scaled(sum_high, d_high, d_high * -MAGIC_FLOAT)
    if LAYOUT.offset:
        p_low -= LAYOUT.offset * xs_low
        p_high -= LAYOUT.offset * xs_high
    if LAYOUT.has_zero and not WHOLE:
        p_low -= (m_low - BELOW) * xs_low
        p_high -= (m_high - BELOW) * xs_high
    acc += p_low * s_low + p_high * s_high
    if LAYOUT.has_min and not LAYOUT.has_zero:
        acc -= m_low * xs_low + m_high * xs_high
    return acc


@triton.jit
def _rows(
    w, x, terms, out_row, stride, at, row, n,
    TOKENS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr, WAITS: tl.constexpr,
):
    """Rows `row` [BLOCK_N] of the weights, to places `at` of `out_row` and of the rows after it, `stride` apart.

    shape.prefetch blocks of chunks are loaded before the values of an earlier kernel are waited for, if it WAITS. With
    shape.early all of a token is asked for at once: products begin with zeros made of its scales, which the assembler
    would load after products otherwise.
    """
    CHUNKS: tl.constexpr = shape.chunks
    LAYOUT: tl.constexpr = w.layout
    WHOLE: tl.constexpr = TOKENS == 1 or shape.block_n < 8
    ahead = ()
    for i in tl.static_range(shape.prefetch):
        loaded = _load(w, row, i * CHUNKS, CHUNKS, ASM)
        ahead = ahead + (loaded,)  # noqa: RUF005
    if WAITS:
        gdc_wait()
    BEGINS: tl.constexpr = shape.early and len(terms) > 0 and LAYOUT.factor == 1.0 and w.factors is None
    acc = ()
    for t in tl.static_range(TOKENS):
        sums = tl.zeros((shape.block_n, CHUNKS), tl.float32)
        if BEGINS:  # with the terms, which are on their way then
            added = tl.zeros((shape.block_n,), tl.float32)
            for i in tl.static_range(len(terms)):
                added += tl.load(terms[i].data + t * terms[i].stride + at, mask=at < n, other=0.0)  # [BLOCK_N]
            sums = tl.where((tl.arange(0, CHUNKS) == 0)[None, :], added[:, None], sums)
        of_blocks = ()
        none = None
        if shape.early:
            bits = tl.zeros((CHUNKS,), tl.int32)
            for i in tl.static_range(shape.prefetch):
                of_block = _token(x, t, i * CHUNKS, LAYOUT, CHUNKS, WHOLE)
                bits |= _bits_of(of_block)
                of_blocks = of_blocks + (of_block,)  # noqa: RUF005
            none = bits & (n >> 31)  # zeros, which the assembler can't know
        for i in tl.static_range(shape.prefetch):
            if shape.early:
                of_token = of_blocks[i]
            else:
                of_token = _token(x, t, i * CHUNKS, LAYOUT, CHUNKS, WHOLE)
            sums = _multiply(sums, ahead[i], of_token, none, LAYOUT, CHUNKS, ASM, WHOLE)
        acc = acc + (sums,)  # noqa: RUF005
    for first in tl.static_range(shape.prefetch * CHUNKS, LAYOUT.kp // 32, CHUNKS):
        loaded = _load(w, row, first, CHUNKS, ASM)
        before = acc
        acc = ()
        for t in tl.static_range(TOKENS):
            of_token = _token(x, t, first, LAYOUT, CHUNKS, WHOLE)
            sums = _multiply(before[t], loaded, of_token, None, LAYOUT, CHUNKS, ASM, WHOLE)
            acc = acc + (sums,)  # noqa: RUF005
    for t in tl.static_range(TOKENS):
        out = tl.sum(acc[t], 1)  # [BLOCK_N]
        if LAYOUT.factor != 1.0:
            out *= LAYOUT.factor
        if w.factors is not None:
            out *= tl.load(w.factors + row)  # [BLOCK_N]
        if not BEGINS:
            for i in tl.static_range(len(terms)):
                out += tl.load(terms[i].data + t * terms[i].stride + at, mask=at < n, other=0.0)  # [BLOCK_N]
        tl.store(out_row + t * stride + at, out, mask=at < n)


@triton.jit
def matvec_kernel(
    w, x, experts, terms, y, n, TOKENS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr
):
    """y f32 [TOKENS, N] = x W^T + terms; x is q8_1 with codes as int32.

    With `experts` a program's second number is a row of y: row i is W[ids[i]] of token i // sharing.
    """
    if PDL:
        gdc_launch_dependents()
    at = tl.program_id(0) * shape.block_n + tl.arange(0, shape.block_n)
    row = tl.minimum(at, n - 1).to(tl.int64)
    out_row = y.data
    if experts is not None:
        if PDL:
            gdc_wait()
        pair = tl.program_id(1)
        row += tl.load(experts.ids + pair).to(tl.int64) * n
        token = pair // experts.sharing
        out_row += pair.to(tl.int64) * y.stride
        codes = x.codes + token.to(tl.int64) * (w.layout.kp // 4)
        x = Q8Activation(codes, x.scale + token, x.sums, x.sums16 + token, x.stride)
    WAITS: tl.constexpr = PDL and experts is None
    _rows(w, x, terms, out_row, y.stride, at, row, n, TOKENS, shape, ASM, WAITS)


@triton.jit
def matvec_pair_kernel(
    w, other, x, y, other_y, n, other_n,
    TOKENS: tl.constexpr, shape: tl.constexpr, other_shape: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):
    """Two products of one activation: y = x W^T by the first programs, and that of the other weights by the rest; see
    `matvec_kernel`."""
    if PDL:
        gdc_launch_dependents()
    program, programs = tl.program_id(0), tl.cdiv(n, shape.block_n)
    if program < programs:
        _rows_of_program(w, x, y, n, program, TOKENS, shape, ASM, PDL)
    else:
        _rows_of_program(other, x, other_y, other_n, program - programs, TOKENS, other_shape, ASM, PDL)


@triton.jit
def _rows_of_program(
    w, x, y, n, program, TOKENS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr, WAITS: tl.constexpr
):
    at = program * shape.block_n + tl.arange(0, shape.block_n)
    _rows(w, x, (), y.data, y.stride, at, tl.minimum(at, n - 1).to(tl.int64), n, TOKENS, shape, ASM, WAITS)
