"""Heads of q, k and v: norm, rotation, and into the KV cache."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.kernels.activations import nearest


@triton.jit
def _pairs(dim: tl.constexpr, half: tl.constexpr, BD: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Of the values of a head [BD]: the number of the pair that each is in, whether it is its first, and its mate."""
    at = tl.arange(0, BD)
    if INTERLEAVED:
        pair, first, mate = at // 2, at % 2 == 0, at ^ 1
    else:
        pair, first = at % half, at < half
        mate = tl.where(first, at + half, at - half)
    return pair, first, mate


@triton.jit
def _angles(
    position, freqs, scale, dim: tl.constexpr, half: tl.constexpr, BD: tl.constexpr, INTERLEAVED: tl.constexpr
):  # fmt: skip
    """Cosines and sines times `scale` for the values of a head [BD]; no need to wait for an earlier kernel."""
    pair, first, _ = _pairs(dim, half, BD, INTERLEAVED)
    angle = position.to(tl.float32) * tl.load(freqs + pair, mask=tl.arange(0, BD) < 2 * half, other=0.0)
    sin = tl.sin(angle) * scale
    return tl.cos(angle) * scale, tl.where(first, -sin, sin)


@triton.jit
def _weights(
    weight, dim: tl.constexpr, half: tl.constexpr, BD: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr
):  # fmt: skip
    """A norm's weights for the values of a head and for their mates; no need to wait for an earlier kernel."""
    at = tl.arange(0, BD)
    own, others = tl.full((BD,), 1.0, tl.float32), tl.full((BD,), 1.0, tl.float32)
    if NORM:
        _, _, mate = _pairs(dim, half, BD, INTERLEAVED)
        own = tl.load(weight + at, mask=at < dim, other=0.0)
        others = tl.load(weight + mate, mask=(at < dim) & (at < 2 * half), other=0.0)
    return own, others


@triton.jit
def _turned(
    x, own, others, cos, sin, eps, dim: tl.constexpr, half: tl.constexpr, BD: tl.constexpr, INTERLEAVED: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """A head of `dim` values at x, normed and with its first 2 * half values turned, [BD]."""
    at = tl.arange(0, BD)
    _, _, mate = _pairs(dim, half, BD, INTERLEAVED)
    turns = at < 2 * half
    value = tl.load(x + at, mask=at < dim, other=0.0)
    other = tl.load(x + mate, mask=(at < dim) & turns, other=0.0)
    if NORM:
        root = tl.sqrt_rn(tl.sum(value * value) / dim + eps)
        value = value / root * own
        other = other / root * others
    return tl.where(turns, value * cos + other * sin, value)


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
    token, head = tl.program_id(0), tl.program_id(1)
    cos, sin = _angles(tl.load(positions + token), freqs, scale, dim, half, BD, INTERLEAVED)
    if PDL:
        gdc_wait()
    value = _turned(x + token.to(tl.int64) * x_stride + head * dim, 1.0, 1.0, cos, sin, 0.0,
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
    token, i = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BD)
    row = tl.load(rows + token)
    cos, sin = _angles(tl.load(positions + token), freqs, scale, dim, half, BD, INTERLEAVED)
    if i < heads:
        own, others = _weights(q_norm, dim, half, BD, INTERLEAVED, NORM)
    else:
        own, others = _weights(k_norm, dim, half, BD, INTERLEAVED, NORM)
    if PDL:
        gdc_wait()
    if i < heads:
        value = _turned(q + token * q_stride + i * dim, own, others, cos, sin, eps, dim, half, BD, INTERLEAVED, NORM)
        tl.store(out + token * out_stride + i * dim + at, value, mask=at < dim)
    elif i < heads + kv_heads:
        head = i - heads
        value = _turned(k + token * k_stride + head * dim, own, others, cos, sin, eps,
                        dim, half, BD, INTERLEAVED, NORM)  # fmt: skip
        _write(k_cache, k_scales, row, head, kv_heads, value, dim, BD, Q8)
    else:
        head = i - heads - kv_heads
        value = tl.load(v + token * v_stride + head * dim + at, mask=at < dim, other=0.0)
        _write(v_cache, v_scales, row, head, kv_heads, value, dim, BD, Q8)
