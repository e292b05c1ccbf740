"""Products of one token whose programs take row after row: for which weights, and how they are launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.backends.gpu.arguments import Constant, Q8Activation, matrix
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.device import multiprocessors
from octavo.backends.gpu.kernels.matvec_stream import matvec_stream_kernel
from octavo.backends.gpu.launch import Launch
from octavo.backends.gpu.layout import Layout
from octavo.backends.gpu.weights import QuantWeight

WARPS, DEEP_WARPS = 16, 12
"""Of a multiprocessor: as many as its registers hold of Q4_K with 4096 values a row, and where four share a row."""
MOST_CHUNKS = 4
"""Of a lane."""
DEEP, DEEPEST = 8192, 16384
"""Values of a row up to which two warps share it, and four."""


@dataclass(frozen=True)
class MatvecStreamShape(Constant):
    """A program of `matvec_stream_kernel`: `warps` share a row."""

    warps: int


def shape_of(layout: Layout, n: int, kp: int, arch: str) -> MatvecStreamShape | None:
    """The shape for one token where it was faster than `matvec` in steps of Llama 3 8B and Qwen3 1.7B on one H200, else
    None."""
    four = layout.bits == 4 and layout.group == 32 and layout.min_bits == 6  # Q4_K
    six = layout.bits == 6 and layout.group == 16 and layout.two_level and layout.signed  # Q6_K
    if layout.table is not None or layout.grid is not None or not (four or six) or kp % 256:
        return None
    if arch == "interpreter":
        return MatvecStreamShape(2) if kp >= 1024 else None
    deep = n < 65536 and DEEP < kp <= DEEPEST
    if six:
        faster = (n >= 65536 and kp == 2048) or deep
    else:
        faster = deep or (n < 65536 and ((n >= 5120 and kp == 4096) or (n >= 8192 and kp == 2048) or 4096 < kp <= DEEP))
    if not arch.startswith("sm_") or not faster:
        return None
    warps = 1
    while kp > 32 * 32 * warps * MOST_CHUNKS:
        warps *= 2
    return MatvecStreamShape(warps)


def multiply(
    c: Context, shape: MatvecStreamShape, w: QuantWeight, x: Q8Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor],
) -> Launch:  # fmt: skip
    """y [1, n] = x [1, k] @ w.T + terms."""
    programs = min(w.n, multiprocessors() * ((DEEP_WARPS if w.kp > DEEP else WARPS) // shape.warps))
    return c.launch(
        matvec_stream_kernel, (programs,), w.planes(), x.as_words(), tuple(map(matrix, terms)), matrix(y), w.n,
        shape=shape, ASM=c.target.asm, warps=shape.warps,
    )  # fmt: skip
