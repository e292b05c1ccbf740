# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Products of quantized weights and 8-bit activations, in tiles of 16 rows and n tokens, each over all of K.

Algorithm: llama.cpp's repacked CPU products: 16 rows interleaved, integer dot products of four bytes (VNNI, dotprod,
    AVX2).
Tile:
    task    16 rows of W, with tile after tile of n tokens: 16, 8, 4, 2 or 1
    W       16 rows, one a lane      | scales | 16 x 32 codes | 16 x 32 codes | ...      one stream, read in order
    x       n tokens x 32 codes      | codes, d, sums         | ...
    acc     [n, 16] float32 in registers: += scale * dot * d - minimum * s  for each block
Bound: bytes with one token: 81% of the read limit of a thread with Q4_K on a Xeon
    (bench/results/cpu-grids-avx512vnni-2026-11-29.json), 68% in a step of Llama 3 8B
    (bench/results/cpu-llama3-8b-q4_k_m-2026-11-21.json). Instructions with 16: 685 of about 750 GOPS (docs/log.md, "The
    int8 product of 16 tokens and 16 rows is at the arithmetic limit").
Tried: docs/log.md: "Prefetching weights by software: slower for one token on Zen 4, faster on a Xeon, and kept";
    "Offsets are free as the start of an integer sum"; "The rule about indexed addresses holds for every loop over
    blocks"; "With AVX2, points of 4 values are not worth looking up, whatever loads them"; "Kernels that look codebook
    entries up were 2,000 lines for a third of the time".
Twin: `octavo.backends.reference.ops.mul_mat`

Weights are in a `TiledLayout`: super-blocks, each of blocks of 32 values, whose groups have scales of one level or two.
Activations are in blocks of n tokens x 32 values, with a scale d and sums, as `quantize_kernel` writes them. A weight
is scale * (code - offset) - minimum, so a block needs one integer dot product; offset and minimum are multiplied with
sums of the activations.

With AVX2 and many tiles, `staged_mul_mat_kernel` unpacks codes once for all of them. Functions that take a layout and n
return functions which are compiled for these.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul.quantize_kernel import BLOCK_BYTES, TILES, WORD_BLOCK_BYTES, WORDS
from octavo.backends.cpu.matmul.staged_kernel import PIECE, staged_product
from octavo.backends.cpu.matmul.tasks import AHEAD, FEW_TOKENS, PRODUCT, product
from octavo.backends.cpu.weights.decode import codes_in_dots, keeps_codes_high, unpack_codes
from octavo.backends.cpu.weights.layout import ROWS, SCALE_BYTES, STEP, TiledLayout
from octavo.jit import host_cpu
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import (
    advance,
    fma_dots,
    fma_dots_2,
    fma_sums,
    fma_word_dots,
    load_exponent_x16,
    load_f16x16,
    load_f32x16,
    load_s8x16,
    load_u8x16,
    mul,
    prefetch,
    splat,
    store_codes,
    store_f32x16,
    store_words,
    sub,
    zeros,
)
from octavo.jit.simd.dots import BIASED, PLAIN, PRELOADED

CALL_MIN_TOKENS = 16
"""From this number of tokens a tile on, sums fill the registers, and the loop over K is a function of its own."""

STAGED_MIN_TILES = 4
"""From this number of tiles on, codes are unpacked once for all of them, where that is faster."""

ROW_BYTES = ROWS * 4
"""Bytes of a float32 for each of 16 rows."""

LOADS = {"f16": load_f16x16, "f32": load_f32x16, "exponent": load_exponent_x16, "zero": load_u8x16}


@kernels(PRODUCT, long=True)
def mul_mat_kernel(layout: TiledLayout, n: int) -> Any:
    """y f32 [T, rows] = x W^T + terms for tiles of n tokens, with the arguments that `PRODUCT` lists; task: 16 rows."""
    add_super, at = _add_super(layout, n), _Places(layout, n)
    super_values, super_bytes = layout.super, layout.super_bytes
    x_first, x_bytes = at.x_first, super_values // STEP * at.x_bytes

    def sums(a, task, x):
        supers = a.k // super_values
        w, acc = a.weights + task * (supers * super_bytes), zeros(n)
        x += a.k // STEP * x_first
        for _super in range(supers):
            acc = add_super(acc, w, x, a.table)  # n x [16]
            w += super_bytes
            x += x_bytes
        return acc

    return product(n, inner(sums, layout, n, inline="never" if n >= CALL_MIN_TOKENS else "always"))


def stages(n: int, tiles: int) -> bool:
    """Whether `staged_mul_mat_kernel` makes products with that many tiles of n tokens: many, with AVX2."""
    return host_cpu.level() == "avx2" and n == TILES[0] and tiles >= STAGED_MIN_TILES


@kernels(PRODUCT, long=True)
def staged_mul_mat_kernel(layout: TiledLayout, n: int) -> Any:
    """`mul_mat_kernel` for many tiles of n tokens, with the same results to the bit."""
    at = _Places(layout, n)
    return staged_product(
        layout, n, _unpack_super(layout, n), _add_super(layout, n, staged=True), staged_bytes(layout), at.x_first,
        at.x_bytes,
    )


class _Places:
    """Where the parts of a super-block are, in bytes from its beginning (minima, block) or from that of a block of 32
    values (small_minima, codes); and where those of activations are."""

    def __init__(self, layout: TiledLayout, n: int) -> None:
        self.minima = SCALE_BYTES[layout.scale] * ROWS * layout.sets
        self.block, self.block_bytes = layout.head_bytes, layout.block_bytes
        self.small_minima = ROWS * layout.groups
        self.codes = layout.block_bytes - layout.code_bytes
        # activations of n tokens: bytes before the first block, and of a block; in a block, to scales and to sums
        words = takes_words(layout, n)
        self.x_first, self.x_bytes = (n * BLOCK_BYTES, n * WORD_BLOCK_BYTES) if words else (0, n * BLOCK_BYTES)
        self.x_scales = 0 if words else n * STEP
        self.x_sums = self.x_scales + n * 4


def _add_super(layout: TiledLayout, n: int, *, staged: bool = False) -> Any:
    """A function (sums, super-block, activations, table) that adds a super-block's products to n vectors of sums.

    The offset of codes takes no instruction where it is 128: integer sums begin at -128 times the sum of the
    activations' codes. So codes of fewer bits are kept in the high bits of their bytes, which makes their offset 128.
    """
    if staged and layout.two_level:
        return _add_staged(layout, n)
    if layout.minima is not None and layout.super > STEP and not layout.two_level:
        return _add_group(layout, n, staged=staged)
    at, groups, blocks = _Places(layout, n), layout.groups, layout.super // STEP
    block_at, block_bytes, x_bytes, x_scales = at.block, at.block_bytes, at.x_bytes, at.x_scales
    codes_of, scale_of, bias_of = _codes_of(layout, n, staged=staged), super_scales(layout), super_minima(layout)
    group_scale, group_bias = scale_of_group(layout), bias_of_group(layout)
    add_dots = fma_word_dots if takes_words(layout, n) else fma_dots
    kind = BIASED if layout.minima else PRELOADED if layout.offset else PLAIN
    offset, most = codes_in_dots(layout)
    in_steps = not layout.two_level or n <= FEW_TOKENS or n >= CALL_MIN_TOKENS

    def add_super(acc, w, x, table):
        d, less = scale_of(w, 0), bias_of(w, 0)  # [16]
        block = w + block_at
        for i in range(blocks):
            codes = codes_of(block, i, table)  # [16, 32]
            if groups == 1:
                scale, bias = group_scale(w, block, d, 0), group_bias(w, block, less, 0)
                acc = add_dots(acc, codes, scale, bias, x, x_scales, kind, offset, most)
            else:
                first, last = group_scale(w, block, d, 0), group_scale(w, block, d, 1)
                low, high = group_bias(w, block, less, 0), group_bias(w, block, less, 1)
                acc = fma_dots_2(acc, codes, first, last, sub(low, high), high, x, x_scales, kind, offset, most)
            block += block_bytes
            x = advance(x, x_bytes) if in_steps else x + x_bytes
        return acc

    return inner(add_super, layout, n, staged, inline="always")


def _add_staged(layout: TiledLayout, n: int) -> Any:
    """`_add_super`, to the bit, for two levels of scales that are in memory with unpacked codes; see `staged_bytes`."""
    at, groups, blocks = _Places(layout, n), layout.groups, layout.super // STEP
    x_bytes, x_scales, block_bytes = at.x_bytes, at.x_scales, staged_bytes(layout)
    add_dots = fma_word_dots if takes_words(layout, n) else fma_dots
    kind = BIASED if layout.minima else PRELOADED if layout.offset else PLAIN
    offset, most = codes_in_dots(layout)
    code_bytes = staged_code_bytes(layout)
    minima_at = code_bytes + groups * ROW_BYTES

    def add_super(acc, w, x, codes):
        for _block in range(blocks):
            scales, minima = codes + code_bytes, codes + minima_at
            if groups == 1:
                acc = add_dots(acc, codes, scales, minima, x, x_scales, kind, offset, most)
            else:
                last, high = scales + ROW_BYTES, minima + ROW_BYTES
                acc = fma_dots_2(acc, codes, scales, last, minima, high, x, x_scales, kind, offset, most)
            codes += block_bytes
            x += x_bytes
        return acc

    return inner(add_super, layout, n, inline="always")


def _add_group(layout: TiledLayout, n: int, *, staged: bool) -> Any:
    """`_add_super` for one level of groups of several blocks, with minima, which are added once for a whole group."""
    at, blocks = _Places(layout, n), layout.super // STEP
    block_at, block_bytes, x_bytes, x_scales, x_sums = at.block, at.block_bytes, at.x_bytes, at.x_scales, at.x_sums
    codes_of, scale_of, bias_of = _codes_of(layout, n, staged=staged), super_scales(layout), super_minima(layout)
    add_dots = fma_word_dots if takes_words(layout, n) else fma_dots
    offset, most = codes_in_dots(layout)

    def add_super(acc, w, x, table):
        none, d = splat(0.0), scale_of(w, 0)  # [16]
        block, tokens = w + block_at, x
        for i in range(blocks):
            codes = codes_of(block, i, table)  # [16, 32]
            acc = add_dots(acc, codes, d, none, tokens, x_scales, PLAIN, offset, most)
            block += block_bytes
            tokens = advance(tokens, x_bytes)
        return fma_sums(acc, bias_of(w, 0), x + x_sums, x_bytes, blocks)

    return inner(add_super, layout, n, staged, inline="always")


def _codes_of(layout: TiledLayout, n: int, *, staged: bool = False) -> Any:
    """A function (block, its number, table) -> the codes of 16 rows x 32 values.

    It prefetches what is read some blocks later. If staged, it gets the address of unpacked codes in place of the
    table, and returns that of the block's.
    """
    block_bytes, ahead, unpacked_bytes = layout.block_bytes, AHEAD, staged_bytes(layout)
    unpack = unpack_codes(layout)

    def staged_codes(block, i, codes):
        return codes + i * unpacked_bytes

    if staged:
        return inner(staged_codes, layout, inline="always")

    def codes_of(block, i, table):
        for line in range(0, block_bytes, 64):
            prefetch(block + ahead + line)
        return unpack(block, table)

    return inner(codes_of, layout, n, inline="always")


def staged_code_bytes(layout: TiledLayout) -> int:
    """Bytes of unpacked codes of 16 rows x 32 values."""
    return ROWS * STEP * (2 if in_words(layout) else 1)


def staged_bytes(layout: TiledLayout) -> int:
    """Bytes of 16 rows x 32 values when they are unpacked.

    These are codes, and with two levels each group's float32 scales and minima: of two groups the first one's minima
    less the last one's, then the last one's, as `fma_dots_2` takes them.
    """
    kinds = 0 if not layout.two_level else 2 if layout.minima else 1
    return staged_code_bytes(layout) + kinds * layout.groups * ROW_BYTES


def in_words(layout: TiledLayout) -> bool:
    """Whether codes are multiplied as 16-bit integers with many tokens; see `WORDS`."""
    return WORDS and layout.groups == 1 and not host_cpu.products_of_16_bits(codes_in_dots(layout)[1])


def takes_words(layout: TiledLayout, n: int) -> bool:
    """Whether codes are multiplied as 16-bit integers with n tokens."""
    return n > FEW_TOKENS and in_words(layout)


def _unpack_super(layout: TiledLayout, n: int) -> Any:
    """A function (super-block, memory, table) that unpacks a super-block to memory; see `staged_bytes`."""
    blocks, block_at, block_bytes = layout.super // STEP, layout.head_bytes, layout.block_bytes
    codes_of, unpacked_bytes, code_bytes = unpack_codes(layout), staged_bytes(layout), staged_code_bytes(layout)
    ahead = PIECE // STEP * block_bytes
    store, two_level = store_words if in_words(layout) else store_codes, layout.two_level
    scale_of, bias_of, store_scales = super_scales(layout), super_minima(layout), _store_scales(layout)

    def unpack_super(w, memory, table):
        d, less = scale_of(w, 0), bias_of(w, 0)  # [16]
        block = w + block_at
        for _block in range(blocks):
            for line in range(0, block_bytes, 64):
                prefetch(block + ahead + line)
            store(memory, codes_of(block, table))
            if two_level:
                store_scales(memory + code_bytes, w, block, d, less)
            block += block_bytes
            memory += unpacked_bytes

    return inner(unpack_super, layout, n)


def _store_scales(layout: TiledLayout) -> Any:
    """A function (memory, super-block, block, d, less) that stores the scales and minima of a block's groups."""
    groups, has_min = layout.groups, layout.minima is not None
    group_scale, group_bias = scale_of_group(layout), bias_of_group(layout)

    def store_scales(memory, w, block, d, less):
        for group in range(groups):
            store_f32x16(memory + group * ROW_BYTES, group_scale(w, block, d, group))
        if has_min:
            high = group_bias(w, block, less, groups - 1)  # [16]
            minima = memory + groups * ROW_BYTES
            if groups == 2:
                store_f32x16(minima, sub(group_bias(w, block, less, 0), high))
            store_f32x16(minima + (groups - 1) * ROW_BYTES, high)

    return inner(store_scales, layout, inline="always")


def small_scales(layout: TiledLayout) -> Any:
    """A function (address, d) -> the 16 small scales there, times d."""
    load = load_s8x16 if layout.signed_scales else load_u8x16

    def scaled(address, d):
        return mul(load(address), d)

    return inner(scaled, layout, inline="always")


def super_scales(layout: TiledLayout) -> Any:
    """A function (super-block, set) -> the scales d of 16 rows, for codes as `_codes_of` has them."""
    load, nbytes = LOADS[layout.scale], SCALE_BYTES[layout.scale] * ROWS
    factor = layout.step * (2.0 ** -(8 - layout.bits) if keeps_codes_high(layout) else 1.0)
    scaled = factor != 1.0

    def scale_of(w, i):
        d = load(w + i * nbytes)
        return mul(d, splat(factor)) if scaled else d

    return inner(scale_of, layout, inline="always")


def super_minima(layout: TiledLayout) -> Any:
    """A function (super-block, set) -> the minima of 16 rows, negated; 0 where a layout has none."""
    has_min, load = layout.minima is not None, LOADS[layout.minima or "f16"]
    at, nbytes = _Places(layout, 1).minima, SCALE_BYTES[layout.minima or "f16"] * ROWS
    has_zero, scale_of = layout.minima == "zero", super_scales(layout)

    def bias_of(w, i):
        if not has_min:
            return splat(0.0)
        minima = load(w + at + i * nbytes)
        return sub(splat(0.0), mul(minima, scale_of(w, i)) if has_zero else minima)

    return inner(bias_of, layout, inline="always")


def scale_of_group(layout: TiledLayout) -> Any:
    """A function (super-block, block, d of its first set, group) -> the scales of a group of the block."""
    two_level, scale_of = layout.two_level, super_scales(layout)
    scaled = small_scales(layout)

    def group_scale(w, block, d, group):
        if two_level:
            return scaled(block + 16 * group, d)
        return d if group == 0 else scale_of(w, group)

    return inner(group_scale, layout, inline="always")


def bias_of_group(layout: TiledLayout) -> Any:
    """A function (super-block, block, bias of its first set, group) -> the bias of a group of the block."""
    two_level, has_min, bias_of = layout.two_level, layout.minima is not None, super_minima(layout)
    at = _Places(layout, 1).small_minima

    def group_bias(w, block, less, group):
        if two_level and has_min:
            return mul(load_u8x16(block + at + 16 * group), less)
        return less if group == 0 else bias_of(w, group)

    return inner(group_bias, layout, inline="always")
