"""Times two ways to scale 4-bit groups of 128 on compute capability 9.0: bench/results/gpu-group-sums-<date>.json.

    python bench/gpu_group_sums.py [--commit HASH] [-o FOLDER]

The package folds scales into the codes, which then are int8 (as QQQ does it, arXiv 2406.09904), and sums are integers
to the end. The other way is here: int32 sums of each group, which are scaled and added up in float32. Both are in
Gluon, read the same packed weights and have a ring of tiles; the other takes the fastest of some shapes. Times are of
one call, medians of a graph's replays over copies of the weights that no cache holds.
"""

from __future__ import annotations

import argparse
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

import gpu_gemm
import results_file
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.compile.gluon import tiles
from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.matmul.w8a8 import gemm
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import Epilogue, GemmConfig, GroupScales, ProblemSize
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import finish, release, sum_splits, tile_scheduler
from octavo.backends.gpu.matmul.w8a8.int8_hopper_kernel import fetch, ring_of, scale_pair, sums_layout
from octavo.backends.gpu.matmul.w8a8.shapes import GemmShape
from octavo.backends.gpu.matmul.w8a8.w4a8_kernel import unpacked
from octavo.bench import gpu, machine

N, K = 8192, 21504
TOKENS = (1, 16, 64, 128, 512, 2048)
COPIES = 3
HALF = gl.constexpr(64)


@gluon.jit
def _group(codes, tokens, units: gl.constexpr):
    """The sums of a group, under way."""
    BN: gl.constexpr = codes.shape[0]
    BM: gl.constexpr = tokens.shape[0]
    acc = gl.zeros([BN, BM], gl.int32, units)
    low, high = unpacked(codes.load(gl.DotOperandLayout(0, units, 4)), "ptx")
    acc = warpgroup_mma(low, tokens.slice(0, HALF, 1).permute((1, 0)), acc, is_async=True)
    return warpgroup_mma(high, tokens.slice(HALF, HALF, 1).permute((1, 0)), acc, is_async=True)


@gluon.jit
def group_sums_kernel(
    a, packed, size, groups, end, split_k, shape: gl.constexpr, config: gl.constexpr, num_warps: gl.constexpr
):
    """`w4a8_hopper_kernel` with int32 sums of a group each, which are scaled while the next are made.

    The scales of neighbouring rows lie side by side; a stage has 256 values of K.
    """
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    tile, split, row, token, first, end_step = tile_scheduler(
        gl.program_id(0), size.m, size.n, size.k, BM, BN, 4 * HALF, shape.group_m, shape.split_k
    )
    ring = ring_of(packed, a, STAGES, 2)
    for i in gl.static_range(STAGES):
        fetch(packed, a, ring, i, first + i, row, token, first + i < end_step, STAGES, 2)
    layout: gl.constexpr = sums_layout(BM, num_warps)
    total = gl.zeros([BN, BM], gl.float32, layout)
    down = row + gl.arange(0, BN, gl.SliceLayout(1, layout))
    scales = groups.data + down
    one, other = scale_pair(scales, down < size.n, first * 2, groups.group, size.k // (2 * HALF))
    for turn in range(first, end_step):
        next_one, next_other = scale_pair(scales, down < size.n, turn * 2 + 2, groups.group, size.k // (2 * HALF))
        slot = (turn - first) % STAGES
        mbarrier.wait(ring.ready.index(slot), ((turn - first) // STAGES) & 1)
        sums = _group(ring.weights.index(slot).slice(0, HALF, 1), ring.tokens.index(slot * 2), layout)
        later = _group(ring.weights.index(slot).slice(HALF, HALF, 1), ring.tokens.index(slot * 2 + 1), layout)
        sums = warpgroup_mma_wait(2, [sums])
        total += sums.to(gl.float32) * one.to(gl.float32)[:, None]
        later = warpgroup_mma_wait(0, [later])
        total += later.to(gl.float32) * other.to(gl.float32)[:, None]
        ahead = turn + STAGES
        fetch(packed, a, ring, ahead - first, ahead, row, token, ahead < end_step, STAGES, 2)
        one, other = next_one, next_other
    release(ring.ready, STAGES)
    last = True
    if shape.split_k > 1:
        total, last = sum_splits(total, split_k, tile, split, shape.split_k)
    if last:
        finish(total, end, size, row, token, config, 1, num_warps)


def sums_apart(
    a: torch.Tensor, packed: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, groups: torch.Tensor,
    y: torch.Tensor, workspace: gemm.Workspace, shape: GemmShape,
) -> torch.Tensor:
    """y [M, N] with int32 sums of each group; groups float16 [K / 128, N]."""
    size, s = ProblemSize(len(a), len(packed), a.shape[1]), shape
    split_k = gemm._split_k(s, size, torch.float32, a.device, workspace)
    group_sums_kernel[s.programs(size.m, size.n) * s.split_k,](
        tiles(a, s.block_m, 128), tiles(packed, s.block_n, s.block_k // 2), size,
        GroupScales(groups, 1, groups.stride(0)), Epilogue(matrix(y), scale_a, scale_b), split_k, s,
        GemmConfig(None, 1, 1, factor=1 / 16), num_warps=s.warps,
    )
    return y


def shapes(m: int) -> list[GemmShape]:
    """Those of the package for this many tokens, and some around them."""
    if m <= 128:
        tokens = max(8, 1 << (m - 1).bit_length())
        return [
            GemmShape(tokens, rows, 256, split_k=splits, stages=stages, warps=4)
            for rows, splits, stages in itertools.product((64, 128), (1, 2, 4), (4, 6))
            if stages * (rows * 128 + tokens * 256) <= 220 << 10 and rows * tokens <= 1 << 13
        ]
    return [
        GemmShape(tokens, rows, 256, split_k=1, stages=stages, warps=8)
        for tokens, rows, stages in ((128, 128, 3), (128, 128, 4), (64, 128, 4))
    ]


def fastest(calls: Any, candidates: list[GemmShape], expected: torch.Tensor) -> tuple[float, GemmShape, float]:
    """Seconds, shape and error of the fastest of the shapes that compile."""
    found: list[tuple[float, GemmShape, float]] = []
    for shape in candidates:
        try:
            each = calls(shape)
            y = each[0]().double()
            error = float((y - expected).norm() / expected.norm())
            assert error < 0.02, (shape, error)
            found.append((gpu_gemm.seconds(each), shape, error))
        except (triton.errors.TritonError, RuntimeError) as error:
            print(f"  {shape}: {str(error)[:100]}", flush=True)
    return min(found, key=lambda row: row[0])


def measured(m: int) -> dict[str, Any]:
    """A row: both ways, the folded one with the shape that the package takes."""
    a, scale_a, scale_b = gpu_gemm.codes(m, K), gpu_gemm.scales(m), gpu_gemm.scales(N)
    codes = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, device="cuda")
    packed = [codes, *(codes.clone() for _ in range(COPIES - 1))]
    groups = (torch.rand(K // 128, N, device="cuda") * 15 + 0.1).half()
    exact = (gpu_gemm.codes4_of(codes).double() * groups.t().double()[..., None]).reshape(N, K)
    exact = (a.double() @ exact.t()) * scale_a[:, None] * scale_b
    workspace = gemm.Workspace()
    y = torch.empty((m, N), dtype=torch.bfloat16, device="cuda")

    def apart(shape: GemmShape) -> list[Any]:
        return [
            partial(sums_apart, a, w.view(torch.int8), scale_a, scale_b, groups, y, workspace, shape) for w in packed
        ]

    common: dict[str, Any] = {"out_dtype": "bf16", "workspace": workspace}
    folded = [partial(gemm.w4a8_gemm, a, w, scale_a, scale_b, groups.t(), **common) for w in packed]
    error = float((folded[0]().double() - exact).norm() / exact.norm())
    time, shape, apart_error = fastest(apart, shapes(m), exact)
    before = gpu_gemm.seconds(folded)
    row = {
        "m": m, "n": N, "k": K, "folded_microseconds": before * 1e6, "sums_microseconds": time * 1e6,
        "ratio": time / before, "shape": vars(shape), "folded_error": error, "sums_error": apart_error,
    }
    print(
        f"{m:5}: folded {before * 1e6:7.1f} us (error {error:.4f}), sums of groups {time * 1e6:7.1f} us"
        f" ({apart_error:.4f}), {time / before:.2f} times; {shape}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=machine.commit())
    parser.add_argument("-o", "--output", type=Path, default=results_file.RESULTS)
    options = parser.parse_args()
    rows = [measured(m) for m in TOKENS]
    described = results_file.described(gpu.describe(GpuBackend()), **gpu.versions(), commit=options.commit)
    results_file.write("gpu-group-sums", {**described, "products": rows}, options.output)


if __name__ == "__main__":
    main()
