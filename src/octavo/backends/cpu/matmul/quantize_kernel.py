# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Activations to 8 bits: what a quantized product reads. Alone, or as the last step of a norm or a pointwise op.

Algorithm: llama.cpp's q8_1 (a scale and sums for 32 values): q = round(x / d), d = max|x| / 127.
Tile: tokens go in tiles as `tiles` has them; a block of a tile of n tokens x 32 values is
    n x 32 codes, int8
    n scales d, n sums d * sum(codes), n such sums of the first 16, float32
    n times -128 * sum(codes), and n each of the first and of the last 16, int32
Bound: instructions; as a task for each tile it takes a third of what a task for each token took (docs/log.md, "Threads
    that share a tile of activations wait for each other").
Tried: docs/log.md: "Threads that share a tile of activations wait for each other".
Twin: `octavo.backends.reference.ops.quantize`

Blocks of a tile follow one another in K. At the int32 dot products with codes of offset 128 begin. With AVX2 as
many blocks come after them, which products with codes of eight bits read in their place:

    the floats and the int32 as above
    n x 32 codes as int16: a token's even ones, then its odd ones
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.backends.cpu.pointwise.expression_kernel import of, of_lanes
from octavo.backends.cpu.pointwise.math import rms_factor
from octavo.jit import host_cpu
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    f32_pointer,
    i32_pointer,
    largest_magnitude,
    load_f32x16,
    mul,
    quantize16,
    splat,
    stack,
    store_token_words,
)

Source = str
"""What values are made of: "values", "rms_norm", or a version of a pointwise op (`Pointwise.version`)."""

WORDS = host_cpu.level() == "avx2"
"""Whether there are blocks with codes of 16 bits, too."""

BLOCK_BYTES, WORD_BLOCK_BYTES = 32 + 6 * 4, 6 * 4 + 64
"""Of a token, in a block of either kind."""

TOKEN_BYTES = BLOCK_BYTES + (WORD_BLOCK_BYTES if WORDS else 0)
"""Bytes of 32 values of a token."""

TILES: tuple[int, ...] = (16, 8) if host_cpu.level() == "avx512vnni" else (4,)
"""Tokens of a tile: as many as the registers hold sums for, and half of that. What is left is one tile more, of any
size, so that weights are read and unpacked once for a few tokens."""


CHUNK = 32
"""Blocks of 32 values that a task does at least, where a row has them."""

RUN = 8
"""Blocks of one token before those of the next: a tile of these stays in the first cache."""


def tiles(tokens: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The tiles of some tokens: tokens of each, and how many; whole ones of `sizes` and then one of what is left."""
    found = []
    for n in sizes:
        count, tokens = divmod(tokens, n)
        found.append((n, count))
    return [(n, count) for n, count in (*found, (tokens, 1)) if n * count]


def half_of(tile: int) -> int:
    """Tokens of the tile that goes before what is left of tiles of that many; 0 for none."""
    return TILES[1] if tile in TILES[:-1] else 0


def tasks_of(tokens: int, k: int, tile: int) -> tuple[int, int]:
    """Tiles of tokens, and chunks of each: enough for several threads where tiles are few."""
    rest, half = tokens % tile, half_of(tile)
    count = tokens // tile + (rest > 0) + (rest > half > 0)
    return count, max(1, min(k // 32 // CHUNK, -(-32 // max(count, 1))))


QUANTIZE = record("codes tokens k", "x x_stride", "chunks", "other other_stride eps:f4")
"""codes                where blocks of tiles begin, for `tokens` tokens of k values
x, x_stride          a token's values, and bytes from one token's to the next one's
chunks               pieces of a token
other, other_stride  the norm's weight, with its `eps`; or the second input of a pointwise op, a row a token
"""


def expression_of(source: Source) -> tuple[Any, int]:
    """A pointwise op's function of 16 lanes, and its inputs; for other sources None and 0."""
    return (None, 0) if source in ("values", "rms_norm") else (of_lanes(source), len(of(source).inputs))


@kernels(QUANTIZE)
def quantize_kernel(source: Source, tile: int) -> Any:
    """Task i quantizes chunk i % chunks of tile i // chunks of `tile` tokens, or of the rest, see `half_of`."""
    token_bytes, normed, gated = TOKEN_BYTES, source == "rms_norm", expression_of(source)[1] == 2
    quantize_blocks, run, factor_bytes, half = _quantize_blocks(source), RUN, tile * 4, half_of(tile)

    def quantize(a, task):
        tokens, k, chunks = a.tokens, a.k, a.chunks
        chunk, first, n = task % chunks, task // chunks * tile, tile
        if first + n > tokens:
            second, first, n = first >= tokens, tokens // tile * tile, tokens % tile
            if n > half > 0:
                first, n = (first + half, n - half) if second else (first, half)
        codes, x = a.codes + first * (k // 32 * token_bytes), a.x + first * a.x_stride
        other_stride = a.other_stride if gated else 0
        other = a.other + first * other_stride
        factors = f32_pointer(stack(factor_bytes))
        for t in range(n):
            factors[t] = rms_factor(x + t * a.x_stride, k, a.eps) if normed else 1.0
        block, stop = k // 32 * chunk // chunks, k // 32 * (chunk + 1) // chunks
        while block < stop:
            last = min(block + run, stop)
            for t in range(n):
                quantize_blocks(codes, k, n, t, x + t * a.x_stride, other + t * other_stride, factors[t], block, last)
            block = last

    return quantize


def _quantize_blocks(source: Source) -> Any:
    """A function that quantizes blocks `first` to `last` of token t of a tile of n."""
    block_bytes, words, normed, (expression, inputs) = BLOCK_BYTES, WORDS, source == "rms_norm", expression_of(source)
    alone, gated = inputs == 1, inputs == 2

    def quantize_blocks(codes, k, n, t, x, other, factor, first, last):
        wide = splat(factor)
        for block in range(first, last):
            at = block * 128
            low, high = load_f32x16(x + at), load_f32x16(x + at + 64)  # [16] each
            if normed:
                low = mul(mul(low, wide), load_f32x16(other + at))
                high = mul(mul(high, wide), load_f32x16(other + at + 64))
            if alone:
                low, high = expression(low), expression(high)
            if gated:
                low = expression(low, load_f32x16(other + at))
                high = expression(high, load_f32x16(other + at + 64))
            d = largest_magnitude(low, high) / 127.0
            inverse = splat(1.0 / d if d > 0 else 0.0)
            base = codes + block * n * block_bytes
            half = quantize16(base + t * 32, mul(low, inverse))
            whole = half + quantize16(base + t * 32 + 16, mul(high, inverse))
            store_sums(base + n * 32 + t * 4, n, d, whole, half)
            if words:
                at = codes + k // 32 * n * block_bytes + block * n * WORD_BLOCK_BYTES
                store_sums(at + t * 4, n, d, whole, half)
                store_token_words(at + n * 24 + t * 64, base + t * 32)

    return inner(quantize_blocks, source)


def _store_sums(at, n, d, whole, half):
    """Store a token's scale, sums of codes times it, and where dot products begin, each n apart."""
    floats = f32_pointer(at)
    floats[0] = d
    floats[n] = d * whole
    floats[2 * n] = d * half
    begins = i32_pointer(at + 12 * n)
    begins[0] = -128 * int(whole)
    begins[n] = -128 * int(half)
    begins[2 * n] = -128 * int(whole - half)


store_sums = inner(_store_sums, inline="always")
