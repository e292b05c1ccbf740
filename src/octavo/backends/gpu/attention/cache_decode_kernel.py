# mypy: ignore-errors
"""Caches of int8, fp8 and q8_0 made float16 for attention of prompts, page after page of a sequence."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.attention.kernel import LEAST_SCALE
from octavo.backends.gpu.weights.decode_half import halves_of_fp8
from octavo.graph.node import PAGE_SIZE

PAGE = tl.constexpr(PAGE_SIZE)
EXPONENT = tl.constexpr(0x7F800000)


@triton.jit
def numbers_of(data, scales, found, row, seen, head, heads, shape: tl.constexpr):
    """float16 [PAGE, dim] of a head's codes, or floats, in page `found`, the page's rows in the order `row`.

    Those of q8_0 are times their scales. Rows that are not `seen` are zeros.
    """
    DIM: tl.constexpr = shape.dim
    GROUPS: tl.constexpr = DIM // 32
    first, row = found * PAGE * heads + head, row[:, None] * heads
    codes = tl.load(data + first * DIM + row * DIM + tl.arange(0, DIM)[None, :], mask=seen[:, None], other=0)
    if shape.kind == "fp8":
        value = halves_of_fp8(codes)
    elif shape.kind == "q8_0":
        place = scales + first * GROUPS + row * GROUPS + tl.arange(0, GROUPS)[None, :]
        scale = tl.load(place, mask=seen[:, None], other=0.0)  # [PAGE, GROUPS]
        value = tl.reshape(codes.to(tl.float16), (PAGE, GROUPS, 32)) * scale[:, :, None]
        value = tl.reshape(value, (PAGE, DIM))
    else:
        value = codes.to(tl.float16)
    return value


@triton.jit
def _unpack_page(cache, page, head, sequence, last, halves, factors, scale, shape: tl.constexpr):
    """Write a page of keys and values, and the factors of its positions."""
    DIM: tl.constexpr = shape.dim
    found = tl.load(cache.pages + sequence * cache.width + page, mask=page * PAGE <= last, other=0).to(tl.int64)
    row = tl.arange(0, PAGE)
    seen = page * PAGE + row <= last
    key = numbers_of(cache.k, cache.k_scales, found, row, seen, head, cache.heads, shape)  # [PAGE, DIM]
    value = numbers_of(cache.v, cache.v_scales, found, row, seen, head, cache.heads, shape)  # [PAGE, DIM]
    if shape.scales == "dynamic":
        scales = (found * cache.heads + head) * PAGE + row
        k_scale = tl.load(cache.k_scales + scales, mask=seen, other=0.0) * (scale * shape.unit)  # [PAGE]
        v_scale = tl.load(cache.v_scales + scales, mask=seen, other=0.0) * shape.unit  # [PAGE]
        power = tl.maximum((v_scale.to(tl.int32, bitcast=True) & EXPONENT).to(tl.float32, bitcast=True), LEAST_SCALE)
        value = (value.to(tl.float32) * power[:, None]).to(tl.float16)
        position = page * PAGE + row
        place = (sequence * cache.heads + head).to(tl.int64) * factors.stride + position
        place += position // shape.block_n * shape.block_n
        tl.store(factors.k + place, k_scale)
        tl.store(factors.k + place + shape.block_n, v_scale / power)
    first = (sequence * halves.width + page).to(tl.int64) * (PAGE * cache.heads * DIM)
    at = head * DIM + row[:, None] * (cache.heads * DIM) + tl.arange(0, DIM)[None, :]  # [PAGE, DIM]
    tl.store(halves.k + first + at, key)
    tl.store(halves.v + first + at, value)


@triton.jit
def unpack_kernel(cache, positions, starts, halves, factors, scale, shape: tl.constexpr, PDL: tl.constexpr):
    """Program (p, head, sequence): every so many pages from p on as float16, keys and values, and their factors.

    cache is a PagedCache, halves and factors the records of `prefill_hopper`, and `starts` that of the attention. Keys
    are numbers without their scale. With scales of positions, values are times the power of two that the scale is at
    least, which leaves 1 to 2 as the factor of weights; that of scores is the key's scale times `scale`. Keys and
    values of q8_0 are times their scales, rounded. From a sequence's last position to the end of its block there are
    zeros.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    head, sequence = tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    last = tl.load(positions + end - 1, mask=begin < end, other=-1)
    blocks = (last + shape.block_n) // shape.block_n
    for page in range(tl.program_id(0), blocks * (shape.block_n // PAGE), tl.num_programs(0)):
        _unpack_page(cache, page, head, sequence, last, halves, factors, scale, shape)
