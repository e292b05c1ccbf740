"""Heads of q, k and v: norm, rotation, and into the KV cache."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.activations import nearest


@triton.jit
def _turned(
    x, weight, position, freqs, scale, eps, dim: tl.constexpr, half: tl.constexpr, BD: tl.constexpr,
    INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """A head of `dim` values at x, normed and with its first 2 * half values turned, [BD]."""
    at = tl.arange(0, BD)
    inside = at < dim
    value = tl.load(x + at, mask=inside, other=0.0)
    turns = at < 2 * half
    if INTERLEAVED:
        pair, first, mate = at // 2, at % 2 == 0, at ^ 1
    else:
        pair, first = at % half, at < half
        mate = tl.where(first, at + half, at - half)
    other = tl.load(x + mate, mask=inside & turns, other=0.0)
    if NORM:
        root = tl.sqrt_rn(tl.sum(value * value) / dim + eps)
        value = value / root * tl.load(weight + at, mask=inside, other=0.0)
        other = other / root * tl.load(weight + mate, mask=inside & turns, other=0.0)
    angle = position.to(tl.float32) * tl.load(freqs + pair, mask=turns, other=0.0)
    cos, sin = tl.cos(angle) * scale, tl.sin(angle) * scale
    rotated = value * cos + tl.where(first, -other, other) * sin
    return tl.where(turns, rotated, value)


@triton.jit
def _write(cache, scales, row, head, heads, value, dim: tl.constexpr, BD: tl.constexpr, Q8: tl.constexpr):
    """A head's values into row `row` of a cache [rows, heads, dim]; with Q8 int8 codes, and a float16 scale for 32."""
    at = tl.arange(0, BD)
    place = (row * heads + head) * dim
    if Q8:
        groups = tl.reshape(value, (BD // 32, 32))
        largest = tl.max(tl.abs(groups), 1)
        scale = tl.div_rn(largest, 127.0)
        inverse = tl.where(largest > 0, tl.div_rn(1.0, tl.where(largest > 0, scale, 1.0)), 0.0)
        code = nearest(groups * inverse[:, None])
        which = tl.arange(0, BD // 32)
        tl.store(scales + place // 32 + which, scale.to(tl.float16), mask=which < dim // 32)
        tl.store(cache + place + at, tl.reshape(code, (BD,)).to(tl.int8), mask=at < dim)
    else:
        tl.store(cache + place + at, value.to(cache.dtype.element_ty), mask=at < dim)


@triton.jit
def rope_kernel(
    x, positions, freqs, out, x_stride, out_stride, heads, scale,
    dim: tl.constexpr, half: tl.constexpr, BD: tl.constexpr, INTERLEAVED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [T, heads, dim]: heads of x turned by their token's position."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + token)
    value = _turned(x + token.to(tl.int64) * x_stride + head * dim, x, position, freqs, scale, 0.0,
                    dim, half, BD, INTERLEAVED, False)  # fmt: skip
    at = tl.arange(0, BD)
    tl.store(out + token.to(tl.int64) * out_stride + head * dim + at, value, mask=at < dim)


@triton.jit
def set_rows_kernel(
    values, rows, cache, scales, stride, heads, dim: tl.constexpr, BD: tl.constexpr, Q8: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """cache[rows[t]] = values[t], a head a program."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, BD)
    value = tl.load(values + token.to(tl.int64) * stride + head * dim + at, mask=at < dim, other=0.0)
    _write(cache, scales, tl.load(rows + token), head, heads, value, dim, BD, Q8)


@triton.jit
def rope_set_rows_kernel(
    q, k, v, k_cache, v_cache, k_scales, v_scales, positions, rows, freqs, q_norm, k_norm, out,
    q_stride, k_stride, v_stride, out_stride, heads, kv_heads, scale, eps,
    dim: tl.constexpr, half: tl.constexpr, BD: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
    Q8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (token, i): head i of q, normed and turned, to `out`; of k to its cache; then of v to its."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, i = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BD)
    position, row = tl.load(positions + token), tl.load(rows + token)
    if i < heads:
        value = _turned(q + token * q_stride + i * dim, q_norm, position, freqs, scale, eps,
                        dim, half, BD, INTERLEAVED, NORM)  # fmt: skip
        tl.store(out + token * out_stride + i * dim + at, value, mask=at < dim)
    elif i < heads + kv_heads:
        head = i - heads
        value = _turned(k + token * k_stride + head * dim, k_norm, position, freqs, scale, eps,
                        dim, half, BD, INTERLEAVED, NORM)  # fmt: skip
        _write(k_cache, k_scales, row, head, kv_heads, value, dim, BD, Q8)
    else:
        head = i - heads - kv_heads
        value = tl.load(v + token * v_stride + head * dim + at, mask=at < dim, other=0.0)
        _write(v_cache, v_scales, row, head, kv_heads, value, dim, BD, Q8)
