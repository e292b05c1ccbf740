"""Which kernel of products, in which shape, for how many tokens: the one place where that is decided. `attention.tiles`
is that of attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.launch.arguments import Constant
from octavo.backends.gpu.matmul import tile_tables
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import (
    SHARED_BYTES,
    STEP_BYTES,
    HopperShape,
    MultiCtaPair,
    MultiCtaShape,
    StreamKShape,
    W4A16Shape,
    stage_bytes,
    stages,
)
from octavo.backends.gpu.weights.layout import TILE, PlaneLayout

Kind = Literal["q8_1", "f16"]

MATVEC_MAX_TOKENS = 4
"""The most tokens of a matvec, which needs no tensor cores."""
FLOAT_MATVEC_MAX_TOKENS = 1
"""The most tokens of a matvec by weights that are floats; more are the library's, with tensor cores."""
MMA_MIN_TOKENS = 3
"""The fewest tokens for which the kernel written for `mma.sync` is faster than a matvec."""
INT8_MAX_TOKENS = 32
"""The most tokens that are quantized to int8; beyond, tensor cores multiply float16 weights with float16 tokens."""
ORDERED_MIN_TOKENS, ORDERED_MAX_TOKENS = 5, 1024
"""The fewest and most tokens that are kept in the order of `w4a16.hopper_kernel`, too, where there is that."""


def activation(tokens: int) -> Kind:
    """What a product of quantized weights wants: int8 by groups, or float16."""
    return "q8_1" if tokens <= INT8_MAX_TOKENS else "f16"


def ordered(tokens: int, arch: str) -> bool:
    """Whether activations are kept in the order of `w4a16.hopper_kernel`, too."""
    return arch == "sm_90" and ORDERED_MIN_TOKENS <= tokens <= ORDERED_MAX_TOKENS and gluon.usable("w4a16")


def padded_tokens(tokens: int, *, full: bool = False) -> int:
    """Tokens between two groups' scales: TP of `activations`; of full tiles, or no more than needed.

    Kernels are compiled for each, so full tiles are a power of two.
    """
    if full:
        return max(INT8_MAX_TOKENS, 1 << (tokens - 1).bit_length())
    return tokens if tokens < MMA_MIN_TOKENS else -(-tokens // 8) * 8


@dataclass(frozen=True)
class MatvecShape(Constant):
    """A program of `matvec_kernel`.

    block_n   rows of weights
    chunks    chunks of 32 codes that are loaded at once
    prefetch  blocks of that many chunks that are loaded before activations are waited for
    warps
    early     all of a token is loaded before anything is multiplied
    """

    block_n: int
    chunks: int
    prefetch: int
    warps: int
    early: bool = False


def matvec(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str, *, pairs: bool = False) -> MatvecShape:
    """The shape of a matvec: a thread holds a chunk of some rows, and a short K is all in flight at once.

    pairs  of a token and an expert, each with rows of its own, of which there are many
    """
    early = tokens == 1 and n < 65536 and not arch.startswith("gfx") and not pairs
    return replace(_matvec(layout, n, kp, tokens, arch, pairs), early=early)


def _matvec(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str, pairs: bool) -> MatvecShape:
    chunks, kind = kp // 32, tile_tables.kind(layout)
    width = min(64, 1 << (chunks - 1).bit_length())
    if arch == "interpreter":
        return MatvecShape(64, width, min(2, -(-chunks // width)), 1)
    if pairs and arch.startswith("sm_"):
        if chunks <= 32:
            return MatvecShape(8, width, 1, max(1, width // 32))
        if chunks == 64 and kind == "two levels":
            return MatvecShape(16, 32, 2, 2)
    if chunks == 64 and n < 65536 and tokens <= 2:
        return MatvecShape(*tile_tables.SHORT.get((kind, tokens, n >= 8192), tile_tables.SHORT_OTHERS))
    size = tile_tables.size(n, kp)
    if chunks == 64 and tokens == 1 and kind == "int8":
        return MatvecShape(*tile_tables.SHORT_HUGE)
    if chunks < 128:
        return MatvecShape(2, width, -(-chunks // width), max(1, width // 32))
    if tokens > 2:
        return MatvecShape(4, 128, 1, 4) if layout.two_level and kp > 8192 else MatvecShape(4, 64, 2, 2)
    if tokens > 1:
        long = tile_tables.LONG_2.get((kind, size)) if chunks == 192 else None
        return MatvecShape(*(long or (4, 128, 1, 4)))
    if chunks == 192 and (kind, size) in tile_tables.LONG:
        return MatvecShape(*tile_tables.LONG[kind, size])
    if layout.table is not None and kind == "two levels" and (size != "small" or n < 5120):
        return MatvecShape(*tile_tables.LOOKED_UP.get(size, tile_tables.MATVEC[kind, size]))
    if layout.bits == 2 and kind == "one level" and size in tile_tables.TWO_BITS:
        return MatvecShape(*tile_tables.TWO_BITS[size])
    return MatvecShape(*tile_tables.MATVEC[kind, size])


@dataclass(frozen=True)
class DotShape(Constant):
    """A program of `mmq_dot_kernel`.

    block_m  tokens
    block_n  rows of weights
    warps    each takes a part of K
    stages   of loads
    split_k  programs of a tile
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    split_k: int = 1


def mmq_dot(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str) -> DotShape:
    """The shape of a product with some tokens: more rows a program where there are many, more warps for a long K."""
    narrowest = 16 if arch.startswith("gfx") else 8  # columns of a matrix instruction
    width = max(narrowest, 1 << (min(tokens, INT8_MAX_TOKENS) - 1).bit_length())
    if kp < 512 or arch == "interpreter":
        return DotShape(width, 64 if arch == "interpreter" else 16, 1, 2, 2 if arch == "interpreter" else 1)
    if arch.startswith("gfx11") and (layout.group == 16 or layout.bits == 5):
        return DotShape(width, 16, 2, 1)  # more does not fit its registers
    if width >= 32:
        return DotShape(width, 64, 4, 2) if n >= 8192 else DotShape(width, 32, 8, 2)
    if n >= 8192:
        both = layout.two_level and n <= 20000
        return DotShape(width, 32, 4, 2) if both and width == 8 else DotShape(width, 64, 2 if width == 8 else 4, 3)
    if layout.two_level:
        return DotShape(width, 32, 4, 2, 4)
    if kp > 8192:
        return DotShape(width, 64, 2, 3, 4) if layout.bits <= 4 else DotShape(width, 32, 2, 3, 8)
    return DotShape(width, 32, 2, 3)


def mmq_any(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str) -> DotShape:
    """The shape of a product with any number of tokens, whose sums are in one order whatever that number is.

    That order comes from how K is divided among warps and programs, and from rows of weights a program; so all of these
    are those of a full tile of tokens, and only the width of a tile differs.
    """
    few = mmq_dot(layout, n, kp, min(tokens, INT8_MAX_TOKENS), arch)
    return replace(mmq_dot(layout, n, kp, INT8_MAX_TOKENS, arch), block_m=few.block_m)


@dataclass(frozen=True)
class MmaShape(Constant):
    """A program of `mmq_mma_kernel`.

    row_tiles    tiles of 16 rows of weights
    token_tiles  tiles of 8 tokens
    warps        each takes a part of K
    split_k      programs of a tile
    prefetch     what is loaded ahead: 1 weights, 2 tokens too
    short        there are fewer rows than a program has
    """

    row_tiles: int
    token_tiles: int
    warps: int
    split_k: int
    prefetch: int
    short: bool


def mmq_mma(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str) -> MmaShape | None:
    """The shape of a product with some tokens by `mma.sync`, or None for another way."""
    found: tuple[int, int, int, int] | None
    if arch == "interpreter":
        if tokens != 16 and not MMA_MIN_TOKENS <= tokens <= 8:
            return None
        found = (1, 1, 1, 1) if tokens == 16 else (1 if tokens % 2 else 2, 2, 2, tokens % 3)
    elif not arch.startswith("sm_") or not MMA_MIN_TOKENS <= tokens <= INT8_MAX_TOKENS:
        return None
    else:
        tuned_for = tile_tables.MMA if tokens <= 8 else tile_tables.MMA_16 if tokens <= 16 else tile_tables.MMA_32
        found = tuned_for.get((tile_tables.kind(layout), tile_tables.size(n, kp)))
        if tokens <= 8 and max(n, kp) <= 2048:
            found = tile_tables.MMA_SQUARE.get(tile_tables.kind(layout), found)
        if found is None and layout.table is not None and layout.bits < 4:
            found = (1, 4, 1, 0)
        if found is None:
            return None
    row_tiles, warps, split_k, prefetch = found
    if arch != "interpreter":
        units = -(-kp // 256)
        warps = min(warps, 1 << (units - 1).bit_length())
        split_k = split_k if units >= 4 * warps else 1
    token_tiles = 1 << max(0, (tokens - 1).bit_length() - 3)
    return MmaShape(row_tiles, token_tiles, warps, split_k, prefetch, n < 16 * row_tiles)


def w4a16(layout: PlaneLayout, n: int, kp: int, tokens: int, arch: str) -> W4A16Shape | None:
    """The shape of a product with some tokens whose weights become float16 in registers, or None for another way."""
    if not _becomes_float16(layout, arch) or not gluon.usable("w4a16"):
        return None
    narrow, minima = layout.bits == 4, layout.has_min and not layout.has_zero
    if tokens > 1024:  # the library's tiles are better by more than unpacking into memory takes
        depth = stages(layout, 256, 128, 3)
        return HopperShape(256, 128, depth, 8) if narrow and not minima and n >= 8192 else None
    if tokens > 256 and -(-tokens // 128) % 2 == 0:
        wide = narrow and -(-tokens // 256) * n >= 200 * 128
        return HopperShape(256, 128, stages(layout, 256, 128, 3), 8) if wide else HopperShape(256, 64, 3, 4)
    found = tile_tables.w4a16(layout, n, kp, tokens, gluon.usable("w4a16_streamk"), gluon.usable("w4a16_multicta"))
    if found is None:
        return None
    if len(found) == 6:
        shape = MultiCtaShape(*found)
        resident = shape.resident * shape.depth * stage_bytes(layout, shape.block_m, shape.block_n)
        return replace(shape, stages=min(shape.stages, SHARED_BYTES // resident))
    block_m, block_n, most, *others = found
    depth = stages(layout, block_m, block_n, most)
    if not others:
        return StreamKShape(block_m, block_n, depth)
    warps, slots = others
    programs = -(-tokens // block_m) * -(-n // block_n)  # an H100 runs `slots` at once
    return HopperShape(block_m, block_n, depth, warps, max(1, min(slots // programs, kp // TILE // 4)))


def w4a16_pair(
    one: tuple[PlaneLayout, int, int], other: tuple[PlaneLayout, int, int], tokens: int, arch: str
) -> MultiCtaPair | None:
    """The shape of products of the same tokens by two matrices (layout, n, kp) in one launch, or None for two.

    Programs of the second are as many to a multiprocessor as those of the first: their rings may hold fewer stages.
    """
    shape, apart = w4a16(*one, tokens, arch), w4a16(*other, tokens, arch)
    if not isinstance(shape, MultiCtaShape) or not isinstance(apart, MultiCtaShape):
        return None
    fitting = STEP_BYTES // shape.resident // (shape.depth * stage_bytes(other[0], shape.block_m, shape.block_n))
    return MultiCtaPair(one[0], shape, other[0], replace(shape, stages=max(2, min(shape.stages, fitting))))


def _becomes_float16(layout: PlaneLayout, arch: str) -> bool:
    """Whether kernels in Gluon make codes of a layout float16 in registers; minima of 8 bits are too large for it."""
    plain = layout.table is None and not layout.offset and layout.bits in (4, 6, 8)
    large = layout.scale == "f32" or (layout.bits == 8 and layout.has_min and not layout.has_zero)
    return arch == "sm_90" and plain and not large


EXPERTS_MIN_PAIRS, EXPERTS_SOME_PAIRS, EXPERTS_MANY_PAIRS = 8, 12, 96
"""Pairs of an expert, on average, from which on `experts_hopper` is taken, with tiles of 32, of 64, and of 128."""


def w4a16_experts(layout: PlaneLayout, n: int, average: float, arch: str) -> HopperShape | None:
    """The shape of products with experts whose weights become float16 in registers, or None for another way.

    n        rows of an expert: scales of all lie side by side, and the copy engine stops a kernel, as an illegal
             instruction, where a copy does not begin at whole 16 bytes
    average  pairs of an expert

    Two programs fit a multiprocessor, also where three quarters of its L1 are shared memory.
    """
    if n % 4 or average < EXPERTS_MIN_PAIRS or not _becomes_float16(layout, arch) or not gluon.usable("experts"):
        return None
    if average >= EXPERTS_MANY_PAIRS:
        return HopperShape(128, 128, 2, 8)
    block_m, depth = (64, 3) if average >= EXPERTS_SOME_PAIRS else (32, 4)
    return HopperShape(block_m, 128, depth - (layout.bits == 8), 8)


def unpacking(kp: int) -> tuple[int, int]:
    """Rows and chunks of a program that makes weights float16: a row of 4096, or less of two."""
    return (1, 128) if kp % 4096 == 0 else (2, 32)
