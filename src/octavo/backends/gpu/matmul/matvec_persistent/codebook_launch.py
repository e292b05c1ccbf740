"""Products of one token with points of four values, whose programs take row after row: for which weights, and how they
are launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo.backends.gpu.device.torch_device import even_programs, multiprocessors
from octavo.backends.gpu.launch.arguments import Constant, Q8Activation, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.matvec_persistent.codebook_kernel import points_stream_kernel
from octavo.backends.gpu.matmul.matvec_persistent.launch import WARPS, WIDE_ROWS
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import Points

COPIES = 16
"""Of the points: 32 KiB of 512 points, and no two threads but those of a pair ask a bank for different words."""


@dataclass(frozen=True)
class PointsStreamShape(Constant):
    """A program of `points_stream_kernel`.

    warps   that share a row, each lane a tile of it
    rows    at a time, each of as many warps; as many more are under way
    copies  of the points in shared memory; 0 where they are looked up in memory
    """

    warps: int
    rows: int = 1
    copies: int = 0


def shape_of(grid: Points | None, n: int, kp: int, arch: str) -> PointsStreamShape | None:
    """The shape for one token, where steps of Llama 3 8B were faster by it on a card, else None: for points of four
    values, of many rows or of long ones."""
    if grid is None or grid.width != 4 or not arch.startswith("sm_"):
        return None
    if 2048 < kp <= 4096 and n >= WIDE_ROWS:
        return PointsStreamShape(1, WARPS, COPIES)
    return PointsStreamShape(4, 2, COPIES) if 8192 < kp <= 16384 and n >= 2048 else None


def programs_of(shape: PointsStreamShape, n: int) -> int:
    """Programs for n rows: not more than a multiprocessor's registers hold."""
    most = multiprocessors() * max(1, WARPS // (shape.warps * shape.rows))
    return even_programs(-(-n // shape.rows), most)


def multiply(
    c: Context, shape: PointsStreamShape, w: QuantWeight, x: Q8Activation, y: torch.Tensor,
    terms: Sequence[torch.Tensor],
) -> Launch:
    """y [1, n] = x [1, k] @ w.T + terms."""
    return c.launch(
        points_stream_kernel, (programs_of(shape, w.n),), w.planes(), x.as_words(), tuple(map(matrix, terms)),
        matrix(y), w.n, shape=shape, ASM=c.target.asm, warps=shape.warps * shape.rows,
    )
