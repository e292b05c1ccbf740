# mypy: ignore-errors
"""What lies around the products with experts of a few tokens: the norm, the choice of experts, and the sum of their
outputs with the next norm.

Algorithm: a router's GEMV whose programs norm the token themselves, as it is what they read anyway; the last of them to
    finish ranks the logits, each against all.
Tile:
    route      program (rows, tokens)    W [N rows, K], x [TOKENS, K] in registers -> x W^T and the sum of x^2
               program (last, token)     x [K] normed -> float32, q8_1
               last to finish            logits [E, 1] against [1, E] -> ranks -> ids
    of many    program (rows, part of K, tokens)    x [M, K / SPLITS] W^T [K / SPLITS, N] by tensor cores, three
               products of tf32 numbers each; last to finish of a tile adds up
    sum        program (token)           outputs [USED, K] -> sum -> float32, norm -> q8_1
Bound: latency: six launches of a layer become two, each of which costs 1.2 to 2.5 us in a captured step of an H200;
    not measured by themselves.
Tried: docs/log.md: "A norm that each program makes for itself costs more than its launch"; "Several programs to a norm
    take as long as one".
Twin: `octavo.backends.reference.ops.rms_norm`, `octavo.backends.reference.ops.top_k`,
    `octavo.backends.reference.ops.sum_experts`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.activations import read, store_q8_1
from octavo.backends.gpu.matmul.split_k import is_last
from octavo.backends.gpu.pointwise.kernel import begin, of_experts


@triton.jit
def _in_order(value, there):
    """float32 as int32 that are in the same order, also NaN, so that no two places have one rank; what is not `there`
    comes last."""
    bits = tl.where(value == 0, 0.0, value).to(tl.int32, bitcast=True)  # -0.0 is 0.0
    return tl.where(there, bits ^ ((bits >> 31) & 0x7FFFFFFF), -(2**31))


@triton.jit
def _choose(logits, ids, token, n, used, EXPERTS: tl.constexpr):
    """The places of the `used` largest of a token's n logits, largest first, of equals the lower place."""
    mine, its = tl.arange(0, EXPERTS)[:, None], tl.arange(0, EXPERTS)[None, :]
    row = logits.data + token * logits.stride
    value = _in_order(tl.load(row + mine, mask=mine < n, other=0.0, cache_modifier=".cg"), mine < n)
    other = _in_order(tl.load(row + its, mask=its < n, other=0.0, cache_modifier=".cg"), its < n)
    ahead = (other > value) | ((other == value) & (its < mine))  # [EXPERTS, EXPERTS]
    rank, place = tl.sum(ahead.to(tl.int32), 1), tl.arange(0, EXPERTS)
    tl.store(ids + token * used + rank, place, mask=(rank < used) & (place < n))


@triton.jit
def route_kernel(
    source, w, bias, logits, ids, normed, codes, counter, tokens, n, k, kp, used,
    ROWS: tl.constexpr, N: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr, B: tl.constexpr,
    PDL: tl.constexpr,
):
    """Of tokens that a Source norms logits f32 [T, n] = x W^T + bias, ids int32 [T, used] of the largest, and x itself.

    normed  float32 [T, k], codes: q8_1 of kp values, ids: None where nobody reads them
    ROWS    programs that divide the rows of w; TOKENS more have a token each
    """
    part, first, at = tl.program_id(0), tl.program_id(1) * TOKENS, tl.arange(0, B)
    if PDL:
        gdc_launch_dependents()
    if part < ROWS:
        row = (part * N + tl.arange(0, N))[None, :, None]
        of_norm = tl.load(source.other.data + at, mask=at < k, other=0.0)[None, None, :]
        weights = tl.load(w + row * k + at[None, None, :], mask=(row < n) & (at < k)[None, None, :], other=0.0)
        weights = weights.to(tl.float32) * of_norm  # [1, N, B]
        if PDL:
            gdc_wait()
        token = (first + tl.arange(0, TOKENS)).to(tl.int64)[:, None, None]
        x = source.x.data + token * source.x.stride + at[None, None, :]
        x = tl.load(x, mask=(token < tokens) & (at < k)[None, None, :], other=0.0)  # [TOKENS, 1, B]
        total = tl.sum(weights * x, 2) / tl.sqrt_rn(tl.sum(x * x, 2) / k + source.eps)  # [TOKENS, N]
        row = part * N + tl.arange(0, N)
        if bias is not None:
            total += tl.load(bias + row, mask=row < n, other=0.0)[None, :]
        token = (first + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
        there = (token < tokens) & (row < n)[None, :]
        tl.store(logits.data + token * logits.stride + row[None, :], total, mask=there)
        if ids is not None and is_last(counter + tl.program_id(1), ROWS):
            for i in range(first, tl.minimum(first + TOKENS, tokens)):
                _choose(logits, ids, i, n, used, EXPERTS)
    else:
        one = (first + part - ROWS).to(tl.int64)
        weight = tl.load(source.other.data + at, mask=at < k, other=0.0)  # [B]
        if PDL:
            gdc_wait()
        if one < tokens:
            value = read(source, weight, one, at, at < k, k, "rms_norm")
            if normed is not None:
                tl.store(normed.data + one * normed.stride + at, value, mask=at < k)
            if codes is not None:
                store_q8_1(tl.reshape(value, (B // 32, 32)), codes, None, one, 0, kp // 32, kp, B // 32)


@triton.jit
def route_many_kernel(
    source, w, bias, logits, normed, splits, tokens, n, k,
    TILES: tl.constexpr, SPLITS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, B: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):
    """`route_kernel` without a choice, of so many tokens that tensor cores pay: TILES of N rows of w, M tokens.

    splits  a SplitK, with sums of squares behind a tile's sums
    """
    part, first = tl.program_id(0), tl.program_id(1) * M
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    if part < TILES * SPLITS:
        tile, split = part // SPLITS, part % SPLITS
        token, row = first + tl.arange(0, M), tile * N + tl.arange(0, N)
        x = source.x.data + token.to(tl.int64)[:, None] * source.x.stride
        acc, squares = tl.zeros((M, N), tl.float32), tl.zeros((M,), tl.float32)
        size = tl.cdiv(tl.cdiv(k, K), SPLITS) * K
        for start in range(split * size, tl.minimum(split * size + size, k), K):
            column = start + tl.arange(0, K)
            there = column < k
            inside = (row < n)[None, :] & there[:, None]
            weights = tl.load(w + row[None, :] * k + column[:, None], mask=inside, other=0.0)
            weights = weights.to(tl.float32) * tl.load(source.other.data + column, mask=there, other=0.0)[:, None]
            values = tl.load(x + column[None, :], mask=(token < tokens)[:, None] & there[None, :], other=0.0)
            acc = tl.dot(values, weights, acc, input_precision=PRECISION)  # [M, K] @ [K, N]
            squares += tl.sum(values * values, 1)
        place = tl.program_id(1) * TILES + tile
        of_tile = splits.partial + place.to(tl.int64) * (SPLITS * M * (N + 1))
        of_sum = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
        tl.store(of_tile + split * (M * (N + 1)) + of_sum, acc)
        tl.store(of_tile + split * (M * (N + 1)) + M * N + tl.arange(0, M), squares)
        if is_last(splits.counter + place, SPLITS):
            acc, squares = tl.zeros((M, N), tl.float32), tl.zeros((M,), tl.float32)
            for i in tl.static_range(SPLITS):
                its = of_tile + i * (M * (N + 1))
                acc += tl.load(its + of_sum, cache_modifier=".cg")
                squares += tl.load(its + M * N + tl.arange(0, M), cache_modifier=".cg")
            acc = acc / tl.sqrt_rn(squares / k + source.eps)[:, None]
            if bias is not None:
                acc += tl.load(bias + row, mask=row < n, other=0.0)[None, :]
            written = (token < tokens)[:, None] & (row < n)[None, :]
            tl.store(logits.data + token.to(tl.int64)[:, None] * logits.stride + row[None, :], acc, mask=written)
    else:
        one, at = (first + part - TILES * SPLITS).to(tl.int64), tl.arange(0, B)
        if one < tokens:
            weight = tl.load(source.other.data + at, mask=at < k, other=0.0)  # [B]
            value = read(source, weight, one, at, at < k, k, "rms_norm")
            tl.store(normed.data + one * normed.stride + at, value, mask=at < k)


@triton.jit
def sum_experts_norm_kernel(
    x, rows, logits, ids, term, out, norm, codes, ordered, experts, used, k, kp, eps,
    NORMALIZED: tl.constexpr, EXPERTS: tl.constexpr, USED: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr,
):
    """`sum_experts_kernel`'s sum of a token in `out`, and normed as `store_q8_1` has it in `codes` and `ordered`."""
    at = tl.arange(0, B)
    weight = tl.load(norm + at, mask=at < k, other=0.0)  # [B]
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    value = of_experts(x, rows, logits, ids, term, token, at, k, experts, used, NORMALIZED, EXPERTS, USED)
    tl.store(out.data + token * out.stride + at, value, mask=at < k)
    value = value * (1 / tl.sqrt_rn(tl.sum(value * value) / k + eps)) * weight
    store_q8_1(tl.reshape(value, (B // 32, 32)), codes, ordered, token, 0, kp // 32, kp, B // 32)
