"""How products of one token are launched whose programs take row after row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from octavo.backends.gpu.device.torch_device import even_programs, multiprocessors
from octavo.backends.gpu.launch.arguments import FusedEpilogue, Q8Activation, Q8Token, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.matvec_persistent.kernel import matvec_persistent_kernel
from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import EpilogueKind, PersistentShape
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import PlaneLayout

UNIT = 16
"""Results that share a scale where a product quantizes them."""
WARPS, DEEP_WARPS = 16, 12
"""Of a multiprocessor: as many as its registers hold of Q4_K with 4096 values a row, and where four share a row."""
SOME_WARPS = 12
"""Of codes of 6 and 8 bits, where a lane has more than two chunks."""
EPILOGUE_WARPS = 8
"""Of a program whose results are quantized; two fit a multiprocessor where a lane has two chunks at the most."""
DEEP = 8192
"""Values of a row up to which two warps share it."""
MOST_IDLE = 6 << 20
"""Bytes that could be read while some multiprocessors have no unit left to compute: what a norm takes, about."""


def epilogue_shape(layout: PlaneLayout, n: int, kp: int, arch: str, epilogue: EpilogueKind) -> PersistentShape | None:
    """The shape of a product whose results are quantized as well, or None where two launches are faster: for Q4_K and
    Q6_K, which wait for instructions, and for many bytes in units that leave some multiprocessors without work."""
    shape = dispatch.persistent(layout, n, kp, arch)
    if shape is None or layout.bits != 8:
        return None
    passes = max(1, n // (2 * UNIT if epilogue == "swiglu" else UNIT)) / multiprocessors()
    if n * layout.row_bytes(kp) * (math.ceil(passes) / passes - 1) > MOST_IDLE:
        return None
    rows = max(1, EPILOGUE_WARPS // shape.warps)
    all_under_way = epilogue == "rms_norm" and passes <= 1
    return replace(shape, epilogue=epilogue, rows=rows, ahead=min(4, UNIT // rows) if all_under_way else 2)


def resident(shape: PersistentShape, layout: PlaneLayout, kp: int) -> int:
    """Warps of a multiprocessor."""
    few = kp <= shape.few_chunks
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
