# mypy: ignore-errors
"""Ops on several streams of a token, which lie one after the other; program (token, part) has B values of each."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo.backends.gpu.pointwise.kernel import part_of_row, whole_row


@triton.jit
def predict_streams_kernel(
    x, coefs, out, x_stride, coefs_stride, out_stride, k, S: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr
):
    """Each of S streams plus the sum of all of them, each times a coefficient."""
    token, at, inside = part_of_row(k, B, PDL)
    for s in range(S):
        total = tl.load(x + token * x_stride + s * k + at, mask=inside, other=0.0)  # [B]
        for r in range(S):
            coef = tl.load(coefs + token * coefs_stride + s * S + r)
            total += coef * tl.load(x + token * x_stride + r * k + at, mask=inside, other=0.0)
        tl.store(out + token * out_stride + s * k + at, total, mask=inside)


@triton.jit
def correct_streams_kernel(
    x, first, coefs, out, x_stride, first_stride, coefs_stride, out_stride, k,
    S: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr,
):
    """Each stream plus what the first one lacks, times one and a coefficient."""
    token, at, inside = part_of_row(k, B, PDL)
    lacks = tl.load(first + token * first_stride + at, mask=inside, other=0.0)  # [B]
    lacks -= tl.load(x + token * x_stride + at, mask=inside, other=0.0)
    for s in range(S):
        value = tl.load(x + token * x_stride + s * k + at, mask=inside, other=0.0)  # [B]
        value += (1 + tl.load(coefs + token * coefs_stride + s)) * lacks
        tl.store(out + token * out_stride + s * k + at, value, mask=inside)


@triton.jit
def add_to_others_kernel(
    x, row, out, x_stride, row_stride, out_stride, k, S: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr
):
    """The first stream as it is, and the others plus a row."""
    token, at, inside = part_of_row(k, B, PDL)
    added = tl.load(row + token * row_stride + at, mask=inside, other=0.0)  # [B]
    for s in range(S):
        value = tl.load(x + token * x_stride + s * k + at, mask=inside, other=0.0)  # [B]
        if s > 0:
            value += added
        tl.store(out + token * out_stride + s * k + at, value, mask=inside)


@triton.jit
def as_large_as_kernel(
    x, like, out, x_stride, like_stride, out_stride, k, least, S: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr
):
    """Each stream with the mean square of `like`. A program has a whole token."""
    token, at, inside = whole_row(k, B, PDL)
    wanted = tl.load(like + token * like_stride + at, mask=inside, other=0.0)  # [B]
    square = tl.sum(wanted * wanted)
    for s in range(S):
        value = tl.load(x + token * x_stride + s * k + at, mask=inside, other=0.0)  # [B]
        value *= tl.sqrt_rn(square / tl.maximum(tl.sum(value * value), least * k))
        tl.store(out + token * out_stride + s * k + at, value, mask=inside)
