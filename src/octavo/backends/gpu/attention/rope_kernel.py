# mypy: ignore-errors
"""Heads of q, k and v in one pass: RMS norm, rotary embedding, quantization into the KV cache.

Algorithm: RoPE (arXiv 2104.09864), fused with the norms before it and the cache's writes after it.
Tile:
    program (token, i)   heads of q | of k | of v, `per_program` of them
                           out      | cache| cache
Bound: latency: 0.9 us a layer of Llama 3 8B in a decode step on an H200
    (bench/results/gpu-layers-h200-2026-11-27.json). A token's cosines and sines take most of a program's time, so with
    many tokens a program turns several heads.
Tried: docs/log.md: "One kernel for attention, rotation and cache writes is slower than three".
Twin: `octavo.backends.reference.ops.rope_set_rows`, `octavo.backends.reference.ops.rope`

Records and HeadShape are those of `rope_launch`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.attention.rotation import rotate
from octavo.backends.gpu.matmul.activations import nearest
from octavo.backends.gpu.matmul.w8a8.quantize_kernel import ROUND, fp8_bits
from octavo.graph.node import PAGE_SIZE

PAGE = tl.constexpr(PAGE_SIZE)


@triton.jit
def _pairs(shape: tl.constexpr):
    """Of the values of a head [block_d]: the number of the pair that each is in, whether it is its first, and its
    mate."""
    at = tl.arange(0, shape.block_d)
    if shape.interleaved:
        pair, first, mate = at // 2, at % 2 == 0, at ^ 1
    else:
        pair, first = at % shape.half, at < shape.half
        mate = tl.where(first, at + shape.half, at - shape.half)
    return pair, first, mate


@triton.jit
def _angles(rotation, token, shape: tl.constexpr):
    """Cosines and sines for the values of a head [block_d]; no need to wait for an earlier kernel."""
    position = tl.load(rotation.positions + token)
    pair, first, _ = _pairs(shape)
    rotary = tl.arange(0, shape.block_d) < 2 * shape.half
    angle = position.to(tl.float32) * tl.load(rotation.freqs + pair, mask=rotary, other=0.0)  # [block_d]
    sin = tl.sin(angle) * rotation.scale
    return tl.cos(angle) * rotation.scale, tl.where(first, -sin, sin)


@triton.jit
def _weights(weight, shape: tl.constexpr):
    """A norm's weights for the values of a head and for their mates; no need to wait for an earlier kernel."""
    at = tl.arange(0, shape.block_d)
    _, _, mate = _pairs(shape)
    own = tl.load(weight + at, mask=at < shape.dim, other=0.0)  # [block_d]
    return own, tl.load(weight + mate, mask=(at < shape.dim) & (at < 2 * shape.half), other=0.0)


@triton.jit
def _roped(x, weights, angles, eps, shape: tl.constexpr):
    """A head at x, normed unless weights are None, with its first 2 * half values turned, [block_d]."""
    at = tl.arange(0, shape.block_d)
    _, _, mate = _pairs(shape)
    rotary = at < 2 * shape.half
    value = tl.load(x + at, mask=at < shape.dim, other=0.0)  # [block_d]
    other = tl.load(x + mate, mask=(at < shape.dim) & rotary, other=0.0)  # [block_d]
    if weights is not None:
        root = tl.sqrt_rn(tl.sum(value * value) / shape.dim + eps)
        value = value / root * weights[0]
        other = other / root * weights[1]
    return tl.where(rotary, value * angles[0] + other * angles[1], value)


@triton.jit
def _write(cache, row, head, value, shape: tl.constexpr):
    """A head's values into row `row` of a CacheRows, as codes and scales if it has them."""
    DIM: tl.constexpr = shape.dim
    BLOCK_D: tl.constexpr = shape.block_d
    at = tl.arange(0, BLOCK_D)
    place = (row * cache.heads + head) * DIM
    if shape.kind == "int8" or shape.kind == "fp8":  # noqa: PLR1714 - kernels have no `in`
        TOP: tl.constexpr = 127.0 if shape.kind == "int8" else 448.0
        if shape.static:
            scale = tl.load(cache.scales + head)
        else:
            odd = tl.max((value != value).to(tl.int32), 0)  # noqa: PLR0124 - NaN
            scale = tl.div_rn(tl.max(tl.abs(value), 0), TOP)
            page, slot = row // PAGE, row % PAGE
            kept = tl.where(odd > 0, float("nan"), scale)
            tl.store(cache.scales + (page * cache.heads + head) * PAGE + slot, kept)
        number = tl.div_rn(value, tl.where(scale > 0, scale, 1.0))
        number = tl.minimum(tl.maximum(number, -TOP), TOP)
        if shape.kind == "int8":
            code = (number + ROUND - ROUND).to(tl.int8)
        else:
            code = fp8_bits(number, False)
        tl.store(cache.data + place + at, code, mask=at < DIM)
    elif shape.kind == "q8_0":
        groups = tl.reshape(value, (BLOCK_D // 32, 32))
        largest = tl.max(tl.abs(groups), 1)
        scale = tl.div_rn(largest, 127.0)
        inverse = tl.where(largest > 0, tl.div_rn(1.0, tl.where(largest > 0, scale, 1.0)), 0.0)
        code = nearest(groups * inverse[:, None])  # [BLOCK_D / 32, 32]
        which = tl.arange(0, BLOCK_D // 32)
        tl.store(cache.scales + place // 32 + which, scale.to(tl.float16), mask=which < DIM // 32)
        tl.store(cache.data + place + at, tl.reshape(code, (BLOCK_D,)).to(tl.int8), mask=at < DIM)
    elif shape.kind == "int4":
        groups = tl.reshape(rotate(tl.reshape(value, (1, BLOCK_D)), 1, BLOCK_D, DIM), (BLOCK_D // 32, 32))
        largest = tl.max(tl.abs(groups), 1)
        scale = tl.where(tl.max(groups, 1) == largest, largest * -0.125, largest * 0.125).to(tl.float16)
        odd = tl.max((groups != groups).to(tl.int32), 1)  # noqa: PLR0124 - NaN
        scale = tl.where(odd > 0, float("nan"), scale.to(tl.float32))  # [BLOCK_D / 32]
        number = tl.div_rn(groups, tl.where(scale == 0, 1.0, scale)[:, None])
        code = (tl.minimum(tl.maximum(number, -8.0), 7.0) + ROUND - ROUND).to(tl.int8)  # [BLOCK_D / 32, 32]
        low, high = tl.split(tl.permute(tl.reshape(code, (BLOCK_D // 32, 2, 16)), (0, 2, 1)))  # [BLOCK_D / 32, 16] each
        which = tl.arange(0, BLOCK_D // 32)
        tl.store(cache.scales + place // 32 + which, scale.to(tl.float16), mask=which < DIM // 32)
        pair = which[:, None] * 16 + tl.arange(0, 16)[None, :]  # [BLOCK_D / 32, 16]
        tl.store(cache.data + place // 2 + pair, (low & 15) | (high << 4), mask=pair < DIM // 2)
    else:
        tl.store(cache.data + place + at, value.to(cache.data.dtype.element_ty), mask=at < DIM)


@triton.jit
def rope_kernel(x, rotation, out, shape: tl.constexpr, PDL: tl.constexpr):
    """Program (token, head): out [T, heads, dim], a head of x turned by its token's position."""
    if PDL:
        gdc_launch_dependents()
    token, head = tl.program_id(0), tl.program_id(1)
    angles = _angles(rotation, token, shape)
    if PDL:
        gdc_wait()
    value = _roped(x.data + token.to(tl.int64) * x.stride + head * shape.dim, None, angles, 0.0, shape)
    at = tl.arange(0, shape.block_d)
    tl.store(out.data + token.to(tl.int64) * out.stride + head * shape.dim + at, value, mask=at < shape.dim)


@triton.jit
def set_rows_kernel(x, rows, cache, shape: tl.constexpr, PDL: tl.constexpr):
    """Program (token, head): cache[rows[token]] = x[token]."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, shape.block_d)
    value = tl.load(x.data + token.to(tl.int64) * x.stride + head * shape.dim + at, mask=at < shape.dim, other=0.0)
    _write(cache, tl.load(rows + token), head, value, shape)


@triton.jit
def rope_set_rows_kernel(
    q, k, v, k_cache, v_cache, rows, rotation, norms, out, heads, shape: tl.constexpr, PDL: tl.constexpr
):
    """Program (token, i): of heads of q, k and v, one after the other, the i-th `per_program`. Those of q, normed and
    turned, go to `out`, those of k to its cache, and those of v to theirs.

    norms is a Norms, or None: nothing is normed.
    """
    if PDL:
        gdc_launch_dependents()
    DIM: tl.constexpr = shape.dim
    token, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * shape.per_program
    at = tl.arange(0, shape.block_d)
    row = tl.load(rows + token)
    angles = _angles(rotation, token, shape)
    eps = 0.0
    q_weights = None
    k_weights = None
    if norms is not None:
        eps = norms.eps
        q_weights = _weights(norms.q, shape)
        k_weights = _weights(norms.k, shape)
    if PDL:
        gdc_wait()
    for i in range(first, tl.minimum(first + shape.per_program, heads + k_cache.heads + v_cache.heads)):
        if i < heads:
            value = _roped(q.data + token * q.stride + i * DIM, q_weights, angles, eps, shape)
            tl.store(out.data + token * out.stride + i * DIM + at, value, mask=at < DIM)
        elif i < heads + k_cache.heads:
            head = i - heads
            value = _roped(k.data + token * k.stride + head * DIM, k_weights, angles, eps, shape)
            _write(k_cache, row, head, value, shape)
        else:
            head = i - heads - k_cache.heads
            value = tl.load(v.data + token * v.stride + head * DIM + at, mask=at < DIM, other=0.0)  # [block_d]
            _write(v_cache, row, head, value, shape)
