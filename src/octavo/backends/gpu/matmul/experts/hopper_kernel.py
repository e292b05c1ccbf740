# mypy: ignore-errors
"""Products with experts for compute capability 9.0, in Gluon.

Algorithm: grouped GEMM over pairs sorted by expert, each tile by W4A16's pipeline (`w4a16.hopper_kernel`).
Tile:
    pairs, sorted    | expert 0 | expert 1       |  2  | ...      tiles of 32 to 128 pairs of one expert
    y^T = W x^T      W [128 rows of that expert, K] from the ring, x^T [K, pairs]
Bound: bytes of the experts' weights with few pairs each, then instructions for decoding and the tensor cores: gate of
    128 experts, 768 x 2048 in Q4_K, 205 TFLOPS at 512 tokens and 343 at 2,048 on an H200, 2.4 and 2.0 times
    `experts.kernel` (bench/results/gpu-experts-2026-11-24.json).
Tried: docs/log.md: "Tiles listed by a launch of its own cost what the list saves"; "A copy of the bulk engine has to
    begin at 16 bytes".
Twin: `octavo.backends.reference.ops.mul_mat_id`

Tiles of pairs are those that `sort_kernel` lists. A tile is read whole: pairs of the next expert inside it,
and rows of that one's weights, are multiplied and not stored. Results go where their pairs were before sorting.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.matmul.w4a16.hopper_kernel import (
    TILE,
    Sources,
    W4A16Ring,
    memory_of,
    multiply_tile,
    send_tokens,
    send_weights,
)
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers, column_halves, release


@gluon.jit
def _store(acc, y, order, first, end, row, expert, n, WARPS: gl.constexpr):
    """Rows order[first] to order[end - 1] of y [pairs, n], from `row` on = acc [rows, pairs]; factors are of all
    experts' rows of weights."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    BELOW: gl.constexpr = 2 if R >= 64 else 1
    out: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [BELOW, WARPS // BELOW], [0, 1])
    value = gl.convert_layout(acc, out)
    rows = (row + gl.arange(0, R, gl.SliceLayout(1, out))).expand_dims(1)
    place = first + gl.arange(0, C, gl.SliceLayout(0, out))
    pair = gl.load(order + place, mask=place < end, other=0).expand_dims(0)
    if y.factors is not None:
        value *= gl.load(y.factors + expert * n + rows, mask=rows < n, other=0.0)
    inside = (rows < n) & (place < end).expand_dims(0)
    gl.store(y.data + pair.to(gl.int64) * y.stride + rows, value, mask=inside)


@gluon.jit
def experts_hopper_kernel(
    x, codes, codes2, scales, order, tiles, y, n, k, layout: gl.constexpr, shape: gl.constexpr, PDL: gl.constexpr
):
    """A program a tile of pairs by rows of an expert's weights; row order[i] of y f32 [pairs, n] is of row i of x.

    x, codes, codes2 and scales are `Sources`; x is float16 [pairs, k], sorted, as `reordered` gives it, and the rows of
    weights are those of all experts, n of each. y is `Results`.
    """
    if PDL:
        gdc_launch_dependents()
    BLOCK_M: gl.constexpr = shape.block_m
    BLOCK_N: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    sources = Sources(codes, codes2, scales, x)
    ring = W4A16Ring(
        memory_of(codes, STAGES), memory_of(codes2, STAGES), memory_of(scales, STAGES), memory_of(x, STAGES * 2),
        barriers(STAGES),
    )
    if PDL:
        gdc_wait()
    across = gl.cdiv(n, BLOCK_N)
    at = tiles + gl.program_id(0) // across * 3
    row = gl.program_id(0) % across * BLOCK_N
    expert, first, end = gl.load(at), gl.load(at + 1), gl.load(at + 2)
    if end > first:
        row_of_all = expert * n + row
        for i in gl.static_range(STAGES - 1):
            send_weights(sources, ring, i, i, row_of_all, i * TILE < k)
            send_tokens(x, ring, i, i, first, i * TILE < k)
        mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [shape.warps, 1], [16, BLOCK_M, 16])
        acc = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, mma)
        steps = k // TILE
        gl.assume(steps > 0)
        for step in range(steps):
            slot = step % STAGES
            mbarrier.wait(ring.ready.index(slot), (step // STAGES) & 1)
            acc = multiply_tile(acc, ring, slot, BLOCK_N, 0, layout, mma)
            ahead = step + STAGES - 1
            send_weights(sources, ring, ahead % STAGES, ahead, row_of_all, ahead < steps)
            send_tokens(x, ring, ahead % STAGES, ahead, first, ahead < steps)
        acc = warpgroup_mma_wait(0, [acc])
        release(ring.ready, STAGES)
        if BLOCK_M >= 256:  # all addresses of a whole tile do not fit the registers
            halves = column_halves(acc)
            parts = column_halves(halves[0]) + column_halves(halves[1])
        else:
            parts = (acc,)
        for i in gl.static_range(4 if BLOCK_M >= 256 else 1):
            _store(parts[i], y, order, first + i * 64, end, row, expert, n, shape.warps)
