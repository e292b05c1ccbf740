"""Products of one token whose programs take row after row: for which weights, and how they are launched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from octavo.backends.gpu.device.torch_device import even_programs, multiprocessors
from octavo.backends.gpu.launch.arguments import Constant, FusedEpilogue, Q8Activation, Q8Token, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.matvec_persistent.kernel import matvec_persistent_kernel
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import PlaneLayout

EpilogueKind = Literal["", "rms_norm", "swiglu"]
UNIT = 16
"""Results that share a scale where a product quantizes them."""
WARPS, DEEP_WARPS = 16, 12
"""Of a multiprocessor: as many as its registers hold of Q4_K with 4096 values a row, and where four share a row."""
SOME_WARPS = 12
"""Of codes of 6 and 8 bits, where a lane has more than two chunks."""
EPILOGUE_WARPS = 8
"""Of a program whose results are quantized; two fit a multiprocessor where a lane has two chunks at the most."""
MOST_IDLE = 6 << 20
"""Bytes that could be read while some multiprocessors have no unit left to compute: what a norm takes, about."""
MOST_CHUNKS = 4
"""Of a lane."""
DEEP, DEEPEST = 8192, 16384
"""Values of a row up to which two warps share it, and four."""
THREE_CHUNKS = 3 * 32 * 32 * 4
"""Values of a row from which on lanes of four warps have more chunks, too many for codes in several planes."""


@dataclass(frozen=True)
class PersistentShape(Constant):
    """A program of `matvec_persistent_kernel`.

    warps  that share a row
    rows   at a time, each of as many warps
    ahead  times as many rows are under way
    epilogue  what the results are quantized for, if they are
    fine   the token has a scale for each 16 values
    """

    warps: int
    rows: int = 1
    ahead: int = 2
    epilogue: EpilogueKind = ""
    fine: bool = False


def shape_of(layout: PlaneLayout, n: int, kp: int, arch: str) -> PersistentShape | None:
    """The shape for one token where it was faster than `matvec` in steps of Llama 3 8B and Qwen3 1.7B on one H200, else
    None."""
    if not _has_kernel(layout, kp):
        return None
    if arch == "interpreter":
        return PersistentShape(2) if kp >= 1024 or (layout.bits == 8 and kp >= 256) else None
    some = n < 65536
    deep = some and DEEP < kp <= DEEPEST
    if layout.bits == 6:
        faster = (n >= 65536 and kp == 2048) or deep
    elif layout.bits == 8:
        faster = some and 1024 <= kp <= DEEPEST
    elif layout.bits in (3, 5) or layout.table is not None:
        faster = some and _faster_of_planes(layout, n, kp)
    elif layout.signed:
        faster = some and n >= 5120 and kp == 4096
    else:
        faster = deep or (some and ((n >= 5120 and kp == 4096) or (n >= 8192 and kp == 2048) or 4096 < kp <= DEEP))
    if not arch.startswith("sm_") or not faster:
        return None
    shape = PersistentShape(warps_of(kp) * (2 if layout.bits in (3, 5) and kp > THREE_CHUNKS else 1))
    many = layout.bits == 8 and n >= 2048 and _few(shape, kp)
    return replace(shape, rows=8) if many else shape


def _faster_of_planes(layout: PlaneLayout, n: int, kp: int) -> bool:
    """As `shape_of`, of codes of 3 and 5 bits and of those in a table, in models of 2048 to 8192 channels: for joined
    matrices, and for long rows but of a table of 16."""
    wide = n >= 8192 and (2048 < kp <= 4096 or kp == DEEP)
    if layout.table is not None and layout.bits == 4:
        return wide
    return wide or DEEP <= kp <= DEEPEST or (layout.has_min and n >= 8192 and 4096 < kp < DEEP)


def epilogue_shape(layout: PlaneLayout, n: int, kp: int, arch: str, epilogue: EpilogueKind) -> PersistentShape | None:
    """The shape of a product whose results are quantized as well, or None where two launches are faster: for Q4_K and
    Q6_K, which wait for instructions, and for many bytes in units that leave some multiprocessors without work."""
    shape = shape_of(layout, n, kp, arch)
    if shape is None or layout.bits != 8:
        return None
    passes = max(1, n // (2 * UNIT if epilogue == "swiglu" else UNIT)) / multiprocessors()
    if n * layout.row_bytes(kp) * (math.ceil(passes) / passes - 1) > MOST_IDLE:
        return None
    rows = max(1, EPILOGUE_WARPS // shape.warps)
    all_under_way = epilogue == "rms_norm" and passes <= 1
    return replace(shape, epilogue=epilogue, rows=rows, ahead=min(4, UNIT // rows) if all_under_way else 2)


def _few(shape: PersistentShape, kp: int) -> bool:
    """Whether a lane has two chunks at the most, and registers are left for other programs."""
    return kp <= 2 * 32 * 32 * shape.warps


def _has_kernel(layout: PlaneLayout, kp: int) -> bool:
    """Whether the kernel takes a layout: those of Q3_K, Q4_0, Q4_K, Q5_0, Q5_K, Q6_K and Q8_0, and tables for three
    bits, or for four whose halves have a sign each."""
    if layout.has_zero or layout.scale != "f16" or (layout.two_level and kp % 256):
        return False
    if layout.table is not None and layout.bits == 3:
        return layout.two_level
    if layout.table is not None:
        return layout.bits == 4 and layout.group == 32 and has_signed_halves(layout.table)
    if layout.has_min:
        return layout.bits in (4, 5) and layout.group == 32 and layout.min_bits == 6
    if layout.bits in (3, 6):
        return layout.group == 16 and layout.two_level and layout.signed
    return layout.bits in (4, 5, 8) and layout.group == 32 and (layout.signed or layout.bits == 4)


def has_signed_halves(table: tuple[int, ...]) -> bool:
    """Whether no value of one half of a table of 16 is above 0, none of the other below, and none -128."""
    halves = (table[:8], table[8:])
    return min(table) > -128 and any(max(a) <= 0 <= min(b) for a, b in (halves, halves[::-1]))


def warps_of(kp: int) -> int:
    """That share a row."""
    warps = 1
    while kp > 32 * 32 * warps * MOST_CHUNKS:
        warps *= 2
    return warps


def resident(shape: PersistentShape, layout: PlaneLayout, kp: int) -> int:
    """Warps of a multiprocessor."""
    few = _few(shape, kp)
    if shape.epilogue:
        return EPILOGUE_WARPS * (1 + few)
    if layout.bits > 4 or layout.bits == 3:
        return WARPS if few else SOME_WARPS
    return DEEP_WARPS if kp > DEEP else WARPS


def programs_of(shape: PersistentShape, layout: PlaneLayout, n: int, kp: int) -> int:
    """Programs for n rows."""
    most = multiprocessors() * max(1, resident(shape, layout, kp) // (shape.warps * shape.rows))
    if not shape.epilogue:
        return even_programs(-(-n // shape.rows), most)
    return min(n // (2 * UNIT if shape.epilogue == "swiglu" else UNIT), most)


def multiply(
    c: Context, shape: PersistentShape, w: QuantWeight, x: Q8Activation | Q8Token, y: torch.Tensor | None,
    terms: Sequence[torch.Tensor], epilogue: FusedEpilogue | None = None,
) -> Launch:
    """y [1, n] = x [1, k] @ w.T + terms, and what `epilogue` says."""
    if not isinstance(x, Q8Token):
        x = Q8Token(*x.as_words())
    shape = replace(shape, fine=x.sums is None)
    return c.launch(
        matvec_persistent_kernel, (programs_of(shape, w.layout, w.n, w.kp),), w.planes(), x, tuple(map(matrix, terms)),
        None if y is None else matrix(y), epilogue, w.n, shape=shape, ASM=c.target.asm, warps=shape.warps * shape.rows,
    )
