"""Products with experts: which kernel for how many pairs of a token and an expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.backends.gpu.arguments import Constant, Matrix, Source, matrix
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels import activations, experts
from octavo.backends.gpu.weights import QuantWeight
from octavo.graph.protocol import Call

SHORT_K = 1024
FEW_PAIRS = 8
"""Pairs up to which those with a short K read each its expert's weights for themselves."""
MOST_READS = 1.75
"""Times that an expert in use may be read on average, with a longer K, before sorting pairs pays."""
SORT_BLOCK = 1024
FLOAT_BLOCK = 1024


def sorts(n_pairs: int, n_experts: int, kp: int) -> bool:
    """Whether so many pairs are to be sorted, so that an expert's weights are read for all of its pairs together."""
    if kp <= SHORT_K:
        return n_pairs > FEW_PAIRS
    in_use = n_experts * (1 - (1 - 1 / n_experts) ** n_pairs)
    return n_pairs > MOST_READS * in_use


@dataclass(frozen=True)
class ExpertsShape(Constant):
    """A program of `experts_kernel`.

    block_m  pairs of a token and an expert
    block_n  rows of weights
    warps
    stages   of loads
    """

    block_m: int
    block_n: int
    warps: int
    stages: int = 3


def shape_of(n_pairs: int, n_experts: int, kp: int, arch: str) -> ExpertsShape:
    """About as many pairs a program as an expert has on average; measured on an H100 with 128 experts of 768 x 2048."""
    average = n_pairs / n_experts
    if arch == "interpreter":
        return ExpertsShape(16 if average <= 12 else 64, 64, 1)
    if average <= 12:
        return ExpertsShape(16, 128, 8) if kp <= SHORT_K else ExpertsShape(16, 64, 4)
    if average <= 48 or arch.startswith("gfx11"):  # where more pairs do not fit the registers
        return ExpertsShape(32, 64, 4)
    return ExpertsShape(64, 64, 4) if kp <= SHORT_K else ExpertsShape(64, 128, 8)


def sorted_product(
    c: Context, w: QuantWeight, x: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, sharing: int
) -> list[Call]:
    """The calls for out f32 [T, used, n]: row i = (token, choice) is expert ids[i] times row i // sharing of x f32.

    Pairs are sorted, and x made float16, by the first product of a plan that has them; others find both.
    """
    rows, k = x.numel() // x.shape[-1], x.shape[-1]
    n_pairs, flat = ids.numel(), x.view(rows, k)
    order, counts = c.shared("order", n_pairs, torch.int32), c.shared("counts", w.experts, torch.int32)
    halves = c.shared("expert inputs", rows * w.kp, torch.float16)
    calls: list[Call] = []
    if not c.holds("sorted", ids):
        calls.append(c.launch(experts.sort_kernel, (w.experts,), ids, order, counts, n_pairs, B=SORT_BLOCK))
    if not c.holds("halved", x):
        grid = (rows, -(-w.kp // FLOAT_BLOCK))
        calls.append(c.launch(activations.float_kernel, grid, Source(matrix(flat)), Matrix(halves, w.kp), None, k, w.kp,
                              KIND="values", B=FLOAT_BLOCK))  # fmt: skip
    shape = shape_of(n_pairs, w.experts, w.kp, c.target.arch)
    most = -(-n_pairs // shape.block_m) + min(w.experts, n_pairs)  # an expert's last tile may be short
    y = out.view(n_pairs, w.n)
    calls.append(c.launch(
        experts.experts_kernel, (-(-w.n // shape.block_n), most), w.planes(), halves, order, counts, matrix(y), w.n,
        w.experts, sharing, EXPERTS=1 << (w.experts - 1).bit_length(), shape=shape, ASM=c.target.asm,
        warps=shape.warps, stages=shape.stages,
    ))  # fmt: skip
    return calls
