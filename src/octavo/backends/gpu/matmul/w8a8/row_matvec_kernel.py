# mypy: ignore-errors
"""Products of a few tokens with weights that have a scale for each row: W8A8 (int8, fp8) and W4A8.

Algorithm: llama.cpp's MMVQ: int8 codes by dp4a, in int32 to the end of a row, or of the 32 codes of a group that a
    lane has, whose scale makes the sum a float32; e4m3 numbers as float32, whose bits are theirs, moved.
Tile:
    program   block_n rows x `words` words of four or eight codes, in turn along K; the next are loaded before these
              are multiplied, the first before PDL's wait
    x         words of four codes, which lie as the weights' do
    acc       [block_n, words] int32 or float32 a token, summed over words at the end
Bound: bytes: one token takes 0.5 to 0.9 instructions a code with int8, 1.1 with int4, 1.5 with groups and 5.2 to 5.7
    with e4m3; docs/log.md, "A matvec for a scale a row is faster than tensor cores, but not with groups".
Tried: docs/log.md: "A matvec for a scale a row is faster than tensor cores, but not with groups".
Twin: `octavo.ops.definition.int8_gemm`, `octavo.ops.definition.w4a8_gemm`, `octavo.ops.definition.fp8_gemm`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.matvec.int8_dot import dot4
from octavo.backends.gpu.weights.decode import e4m3_bits
from octavo.backends.gpu.weights.loads import load_or_zero

HIGH = tl.constexpr(-0x0F0F0F10)  # the upper four bits of each byte
UP, DOWN = tl.constexpr(2.0**105), tl.constexpr(2.0**30)  # x twice by UP, and sums by DOWN, undo two of `e4m3_bits`


@triton.jit
def _load(w, groups, row, first, WORDS: tl.constexpr, LENGTH: tl.constexpr, n):
    """Words [BLOCK_N, WORDS] of the rows from word `first` of LENGTH on, and their groups' scales, or zeros."""
    word = first + tl.arange(0, WORDS)[None, :]
    mask = None if LENGTH % WORDS == 0 else word < LENGTH
    codes = load_or_zero(w + row * LENGTH + word, mask)
    scale = 0.0
    if groups is not None:
        quad = first // 4 + tl.arange(0, WORDS // 4)[None, :]
        mask = None if LENGTH % WORDS == 0 else quad < LENGTH // 4
        at = row + (quad // 4).to(tl.int64) * n
        at = tl.multiple_of(tl.max_contiguous(at, [1, 2]), [1, 1])  # not so, but with their codes in a thread
        scale = load_or_zero(groups + at, mask)
    return codes, scale


@triton.jit
def _added(acc, loaded, x, first, KIND: tl.constexpr, WORDS: tl.constexpr, LENGTH: tl.constexpr, ASM: tl.constexpr):
    """acc [BLOCK_N, WORDS] + the products of loaded words with a token, words of four codes."""
    codes, scale = loaded
    word = first + tl.arange(0, WORDS)
    mask = None if LENGTH % WORDS == 0 else word < LENGTH
    if KIND == "int8":
        of_token = load_or_zero(x + word, mask)  # [WORDS]
        acc = dot4(codes, tl.broadcast_to(of_token[None, :], codes.shape), acc, ASM)
    elif KIND == "fp8":
        of_token = load_or_zero(x + word, mask)
        for i in tl.static_range(4):
            acc += e4m3_bits(codes, i) * (e4m3_bits(of_token, i) * UP * UP)[None, :]
    else:
        at = x + (word // 16) * 32 + word % 16
        x_low, x_high = load_or_zero(at, mask), load_or_zero(at + 16, mask)  # [WORDS]
        low, high = (codes << 4) & HIGH, codes & HIGH
        sums = tl.zeros_like(codes) if KIND == "int4_groups" else acc
        sums = dot4(low, tl.broadcast_to(x_low[None, :], codes.shape), sums, ASM)
        sums = dot4(high, tl.broadcast_to(x_high[None, :], codes.shape), sums, ASM)
        if KIND == "int4_groups":
            sums = tl.sum(tl.reshape(sums, (codes.shape[0], WORDS // 4, 4)), 2)
            acc += sums.to(tl.float32) * scale.to(tl.float32)
        else:
            acc = sums
    return acc


@triton.jit
def row_matvec_kernel(
    w, scales, groups, x, x_scales, terms, y, n, TOKENS: tl.constexpr, shape: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):
    """y f32 [TOKENS, N] = x W^T * x_scales * scales + terms; w and x are codes as int32 words, `groups` float16
    [K / 128, N] or None; shape is a RowMatvecShape."""
    if PDL:
        gdc_launch_dependents()
    LENGTH: tl.constexpr = shape.length
    WORDS: tl.constexpr = shape.words
    K_WORDS: tl.constexpr = shape.k // 4
    at = tl.program_id(0) * shape.block_n + tl.arange(0, shape.block_n)
    row = tl.minimum(at, n - 1).to(tl.int64)[:, None]
    ahead = _load(w, groups, row, 0, WORDS, LENGTH, n)
    of_row = tl.load(scales + at, mask=at < n, other=0.0)  # [BLOCK_N]
    if PDL:
        gdc_wait()
    OF: tl.constexpr = tl.int32 if groups is None and shape.kind != "fp8" else tl.float32
    SUMS: tl.constexpr = WORDS if groups is None else WORDS // 4
    acc = ()
    for _t in tl.static_range(TOKENS):
        acc = acc + (tl.zeros((shape.block_n, SUMS), OF),)  # noqa: RUF005
    for first in tl.static_range(0, LENGTH, WORDS):
        loaded = ahead
        if first + WORDS < LENGTH:
            ahead = _load(w, groups, row, first + WORDS, WORDS, LENGTH, n)
        before = acc
        acc = ()
        for t in tl.static_range(TOKENS):
            sums = _added(before[t], loaded, x + t * K_WORDS, first, shape.kind, WORDS, LENGTH, ASM)
            acc = acc + (sums,)  # noqa: RUF005
    for t in tl.static_range(TOKENS):
        total = tl.sum(acc[t], 1)  # [BLOCK_N]
        if shape.kind == "fp8":
            total *= DOWN
        elif shape.kind == "int4":
            total = total >> 4
        elif shape.kind == "int4_groups":
            total *= 1 / 16
        out = total.to(tl.float32) * tl.load(x_scales + t) * of_row
        for i in tl.static_range(len(terms)):
            out += tl.load(terms[i].data + t * terms[i].stride + at, mask=at < n, other=0.0).to(tl.float32)
        tl.store(y.data + t * y.stride + at, out, mask=at < n)
