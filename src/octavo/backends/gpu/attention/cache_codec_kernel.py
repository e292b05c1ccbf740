# mypy: ignore-errors
"""What prefill attention multiplies, made of a cache: float16 (`unpack_kernel`) or 8-bit numbers (`encode_kernel`).

Algorithm: dequantization of pages; quantization of blocks of 128 positions, with keys less a mean, as SageAttention
    smooths them (arXiv 2410.02367), here that of one page in the sequence's middle.
Tile:
    unpack   program (p, head, sequence)       pages p, p + P, ...   [64, D] codes -> [64, D] float16
    encode   program (block, head, sequence)   two pages            [128, D] -> K [128, D], or V^T [D, 128], and a scale
Bound: bytes: keys and values of 2,048 tokens, 8 heads of 128, are encoded in 7 us on an H200 (docs/log.md, "The mean of
    keys from all over a sequence took longer than their codes"), some 0.4 of the read limit.
Tried: docs/log.md: "The mean of keys from all over a sequence took longer than their codes".
Twin: `tests.backends.naive.decoded_pages`, `tests.backends.naive.encoded_blocks`

`unpack_kernel` takes int8, fp8 and q8_0, page after page of a sequence; `encode_kernel` any of these and float16.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.attention.kernel import MIN_SCALE, head_scale_of
from octavo.backends.gpu.matmul.w8a8.quantize_kernel import ROUND, fp8_bits
from octavo.backends.gpu.weights.decode_half import halves_of_fp8
from octavo.graph.node import PAGE_SIZE

PAGE = tl.constexpr(PAGE_SIZE)
EXPONENT = tl.constexpr(0x7F800000)
TOP_FP8 = tl.constexpr(448.0)
TOP_INT8 = tl.constexpr(127.0)


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
        power = tl.maximum((v_scale.to(tl.int32, bitcast=True) & EXPONENT).to(tl.float32, bitcast=True), MIN_SCALE)
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
    """Program (p, head, sequence): pages p, p + programs and so on as float16, keys and values, and their factors.

    cache is a PagedCache, halves and factors the records of `prefill_hopper_launch`, and `starts` that of the
    attention. Keys are numbers without their scale. With scales of positions, values are times the power of two that
    the scale is at least, which leaves 1 to 2 as the factor of weights; that of scores is the key's scale times
    `scale`. Keys and values of q8_0 are times their scales, rounded. From a sequence's last position to the end of its
    block there are zeros.
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


@triton.jit
def _floats(data, scales, cache, sequence, page, row, last, head, shape: tl.constexpr):
    """float32 [PAGE, dim]: keys or values in a sequence's page, its rows in the order `row`, zeros after position
    `last`."""
    seen = page * PAGE + row <= last
    found = tl.load(cache.pages + sequence * cache.width + page, mask=page * PAGE <= last, other=0).to(tl.int64)
    value = numbers_of(data, scales, found, row, seen, head, cache.heads, shape).to(tl.float32)  # [PAGE, dim]
    if shape.scales == "dynamic":
        place = (found * cache.heads + head) * PAGE + row
        value *= (tl.load(scales + place, mask=seen, other=0.0) * shape.unit)[:, None]
    elif shape.scales == "static":
        value *= head_scale_of(scales, head, shape)
    return value


@triton.jit
def _e4m3(value, shape: tl.constexpr):
    """The bytes of the e4m3 numbers nearest to float32 of up to 448."""
    if shape.converts:
        code = value.to(tl.float8e4nv).to(tl.int8, bitcast=True)
    else:
        code = fp8_bits(value, False)
    return code


@triton.jit
def _key_codes(key, times, out, shape: tl.constexpr):
    """Write keys [PAGE, dim] times a factor as codes."""
    key *= times
    if shape.products == "int8":
        code = (key + ROUND).to(tl.int32, bitcast=True).to(tl.int8)
    else:
        code = _e4m3(key, shape)
    tl.store(out + tl.arange(0, PAGE)[:, None] * shape.dim + tl.arange(0, shape.dim)[None, :], code)


@triton.jit
def _encode_keys(cache, sequence, head, block, last, out, factor, shape: tl.constexpr):
    """Write a block's keys [2 PAGE, dim] less a vector, the mean of the keys in the page in the sequence's middle, and
    what a code's 1 stands for."""
    TOP: tl.constexpr = TOP_INT8 if shape.products == "int8" else TOP_FP8
    row = tl.arange(0, PAGE)
    k, scales, middle = cache.k, cache.k_scales, last // PAGE // 2
    first = _floats(k, scales, cache, sequence, 2 * block, row, last, head, shape)  # [PAGE, dim]
    second = _floats(k, scales, cache, sequence, 2 * block + 1, row, last, head, shape)  # [PAGE, dim]
    some = _floats(k, scales, cache, sequence, middle, row, last, head, shape)  # [PAGE, dim]
    center = (tl.sum(some, 0) / tl.minimum(last + 1 - middle * PAGE, PAGE))[None, :]
    position = block * (2 * PAGE) + row[:, None]
    first = tl.where(position <= last, first - center, 0.0)
    second = tl.where(position + PAGE <= last, second - center, 0.0)
    most = tl.maximum(tl.max(tl.maximum(tl.abs(first), tl.abs(second))), MIN_SCALE)
    _key_codes(first, TOP / most, out, shape)
    _key_codes(second, TOP / most, out + PAGE * shape.dim, shape)
    tl.store(factor, most / TOP)


@triton.jit
def _encode_values(cache, sequence, head, block, last, out, width, factor, shape: tl.constexpr):
    """Write a block's values, e4m3 [dim, 2 PAGE] of rows of `width`, and the log2 of what a code's 1 stands for.

    Positions are in another order: of 16, which are 8 pairs, those four follow each other that a thread of the tensor
    cores has the weights of when these are sums, and wants when they are a factor.
    """
    at = tl.arange(0, PAGE)
    row = at // 16 * 16 + at % 16 // 4 * 2 + at % 2 + at % 4 // 2 * 8
    v, scales = cache.v, cache.v_scales
    first = _floats(v, scales, cache, sequence, 2 * block, row, last, head, shape)  # [PAGE, dim]
    second = _floats(v, scales, cache, sequence, 2 * block + 1, row, last, head, shape)  # [PAGE, dim]
    most = tl.maximum(tl.max(tl.maximum(tl.abs(first), tl.abs(second))), MIN_SCALE)
    place = out + tl.arange(0, shape.dim)[:, None] * width + at[None, :]
    tl.store(place, tl.trans(_e4m3(first * (TOP_FP8 / most), shape)))  # [dim, PAGE]
    tl.store(place + PAGE, tl.trans(_e4m3(second * (TOP_FP8 / most), shape)))
    tl.store(factor, tl.log2(most / TOP_FP8))


@triton.jit
def encode_kernel(cache, positions, starts, codes, shape: tl.constexpr, PDL: tl.constexpr):
    """Program (2 block + which, head, sequence): a block of keys, or (which 1) of values, as 8-bit numbers.

    cache is a PagedCache, codes and shape are records of `prefill_hopper_launch`, `starts` and `positions` those of the
    attention. Scores stay what they are but for a number that is the same for all of a query's, since all keys are less
    the same vector. After a sequence's last position there are zeros up to the end of its block.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    N: tl.constexpr = 2 * PAGE
    block, head, sequence = tl.program_id(0) // 2, tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    last = tl.load(positions + end - 1, mask=begin < end, other=-1)
    if block * N <= last:
        place = (sequence * cache.heads + head).to(tl.int64)
        factor = codes.factors + place * (2 * (codes.width // N)) + 2 * block
        if tl.program_id(0) % 2 == 0:
            out = codes.k + (place * codes.width + block * N) * shape.dim
            _encode_keys(cache, sequence, head, block, last, out, factor, shape)
        else:
            out = codes.v + place * shape.dim * codes.width + block * N
            _encode_values(cache, sequence, head, block, last, out, codes.width, factor + 1, shape)
