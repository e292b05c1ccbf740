"""Tiles of attention's kernels, and parts that a sequence's keys are divided in: for how many queries, on what."""

from __future__ import annotations

from dataclasses import dataclass

import triton
from triton import next_power_of_2

from octavo.graph.node import PAGE_SIZE


@dataclass(frozen=True)
class AttentionTile:
    """A program of attention.

    block_m    queries
    warps
    block_n    positions of a step, a page or a part of one
    precision  of products of float32, a name of Triton's; None for float16
    stages     blocks that are under way
    part       where keys are values too: values of queries and keys that are multiplied at a time, 0: all
    ahead      there too: codes of a block are read while the one before is multiplied
    """

    block_m: int
    warps: int
    block_n: int = PAGE_SIZE
    precision: str | None = None
    stages: int = 2
    part: int = 0
    ahead: bool = False


WIDE = 256
"""Heads of more values have tiles of their own: in others, keys and values do not fit the shared memory."""


def prefill(dim: int, arch: str, exact: bool, kind: str = "") -> AttentionTile:
    """The tile of attention with many queries, heads of `dim` values (a power of two); exact: all in float32.

    Twice the bytes, and each value in two parts, leave room for fewer. kind: of a cache of codes.
    """
    codes = kind in ("int8", "fp8", "int4")
    if dim > WIDE:
        return _wide(16, arch, exact)
    if kind == "int4" and arch.startswith("sm_8"):  # whose tensor cores take them after each has a register
        return AttentionTile(32, 4, 32)
    few = ("sm_8", "sm_90", "gfx11") if codes else ("sm_8", "gfx11")
    warps = 8 if arch.startswith(few) else 4  # with four, registers spill
    if codes and arch.startswith("gfx11"):
        return AttentionTile(16 if kind == "int4" else 32, warps, 16)
    if not exact:
        return AttentionTile(64 if dim <= 128 else 32, warps, 32 if kind == "int4" else PAGE_SIZE)
    if dim <= 128 and arch in ("sm_90", "gfx942", "interpreter"):
        return AttentionTile(64, 4, 32, exact_products(arch))
    return AttentionTile(16, 8 if dim > 128 else warps, 16, exact_products(arch))


def decode(dim: int, group: int, arch: str, exact: bool, kind: str = "") -> AttentionTile:
    """The tile of decoding attention, for `group` query heads of a head of keys and values; otherwise as `prefill`."""
    rows, few_registers = max(16, next_power_of_2(group)), arch.startswith("gfx11")
    if dim > WIDE:
        return _wide(rows, arch, exact)
    if not exact:
        if few_registers:
            return AttentionTile(rows, 8, {"int8": 32, "fp8": 32, "int4": 16}.get(kind, PAGE_SIZE))
        return AttentionTile(rows, 4, 32 if kind == "int4" else PAGE_SIZE)
    if few_registers or dim > 128:
        return AttentionTile(rows, 8, 16, exact_products(arch))
    return AttentionTile(rows, 4, 32, exact_products(arch))


def _wide(rows: int, arch: str, exact: bool) -> AttentionTile:
    block_n = 16 if exact or arch.startswith("gfx11") else 32
    return AttentionTile(rows, 8, block_n, exact_products(arch) if exact else None)


TRITON_SPILLS = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
"""Whether this Triton keeps more of a tile of latent attention in registers than there are."""


def latent(rows: int, arch: str, exact: bool, kind: str = "") -> AttentionTile:
    """The tile of attention where keys of up to 576 values are values too, for `rows` queries; kind: of a cache of
    codes."""
    codes, hopper = kind == "q8_0", arch.startswith(("sm_9", "sm_10"))
    spills = TRITON_SPILLS and arch.startswith("sm_")
    ahead = kind in ("int8", "fp8", "int4")
    if arch == "interpreter":
        precision = exact_products(arch) if exact else None
        return AttentionTile(16 if rows <= 16 else 64, 4, 32, precision, part=64 * exact, ahead=ahead)
    if exact or arch.startswith("gfx11"):
        precision = exact_products(arch) if exact else None
        return AttentionTile(16, 8, 16, precision, stages=1, part=32 if codes else 64)
    if ahead:  # by products that read registers: of a block of 64, whose tiles lie in shared memory, they were wrong
        wide = rows > 16 and hopper and not spills
        return AttentionTile(32, 8, 64) if wide else AttentionTile(16, 8, 32, ahead=True)
    part = 64 if spills else 0
    if codes and arch == "gfx942":
        return AttentionTile(16, 8, 32, stages=1, part=64)
    if not hopper:
        return AttentionTile(16, 8, 32, part=part)
    if codes:
        return AttentionTile(16, 8, 64, stages=3, part=part)
    wide = rows > 16 and arch == "sm_90" and not spills
    return AttentionTile(32, 4, 64, stages=3) if wide else AttentionTile(16, 4, 64)


def exact_products(arch: str) -> str:
    """AMD's tensor cores multiply float32; with those of NVIDIA it takes three products, exact to 22 bits."""
    return "ieee" if arch.startswith("gfx") else "tf32x3"


SPLITS_IN_FLIGHT, MAX_SPLITS = 264, 64
"""Programs of decoding attention that a large device runs at once, and those that share a sequence at the most."""


def splits(sequences: int, kv_heads: int, pages: int, arch: str) -> int:
    """Parts that each sequence's keys are divided in, at most as many as there are pages."""
    most = 2 if arch == "interpreter" else MAX_SPLITS
    return max(1, min(pages, most, SPLITS_IN_FLIGHT // (sequences * kv_heads)))


def latent_splits(programs: int, pages: int, arch: str) -> int:
    """As `splits`, where keys are values too: a program's blocks of keys are all that a multiprocessor holds.

    programs  tiles of queries, of all sequences
    """
    most = 2 if arch == "interpreter" else 2 * MAX_SPLITS
    return max(1, min(pages, most, SPLITS_IN_FLIGHT // 2 // programs))
