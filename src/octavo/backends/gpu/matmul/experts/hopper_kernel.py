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

from octavo.backends.gpu.compile.gluon_names import copy_tile, reinterpret
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
def store_gated(
    acc, gate, biases, numbers, factors, first, end, row, expert, n, KIND: gl.constexpr, WARPS: gl.constexpr
):
    """Rows `first` to `end` - 1 of gate [pairs, n], from `row` on, = KIND of acc's rows of gate and of up, which are
    biased before: float16, `reordered`."""
    H: gl.constexpr = acc.shape[0] // 2
    C: gl.constexpr = acc.shape[1]
    both = acc.reshape([2, H, C]).permute((1, 2, 0))
    if WARPS == 8:  # the first four have gate, the others up
        both = gl.convert_layout(both, gl.BlockedLayout([4, 1, 2], [8, 4, 1], [2, 4, 1], [2, 0, 1]))
    of_gate, of_up = both.split()
    LAYOUT: gl.constexpr = of_gate.type.layout
    rows = row + gl.arange(0, H, gl.SliceLayout(1, LAYOUT))
    place = first + gl.arange(0, C, gl.SliceLayout(0, LAYOUT))
    if factors is not None:
        of_gate *= gl.load(factors + 2 * expert * n + rows, mask=rows < n, other=0.0).expand_dims(1)
        of_up *= gl.load(factors + (2 * expert + 1) * n + rows, mask=rows < n, other=0.0).expand_dims(1)
    if biases is not None:
        of_gate += gl.load(biases.x + expert * n + rows, mask=rows < n, other=0.0).expand_dims(1)
        of_up += gl.load(biases.other + expert * n + rows, mask=rows < n, other=0.0).expand_dims(1)
    value = KIND(of_gate, of_up, *numbers)
    at = rows // 16 * 16 + rows % 2 * 8 + rows % 16 // 4 * 2 + rows // 2 % 2
    out = gate.data + place.expand_dims(0).to(gl.int64) * gate.stride + at.expand_dims(1)
    gl.store(out, value.to(gl.float16), mask=(rows < n).expand_dims(1) & (place < end).expand_dims(0))


@gluon.jit
def memory_of_halves(tiles, STAGES: gl.constexpr, WIDE: gl.constexpr):
    """Shared memory for tiles of two dimensions, also of a source whose tiles have two parts: rows, or, WIDE, columns
    side by side."""
    memory = 0
    if tiles is not None:
        SHAPE: gl.constexpr = tiles.block_type.shape
        if len(SHAPE) == 2:
            memory = memory_of(tiles, STAGES)
        elif WIDE:
            plain: gl.constexpr = gl.NVMMASharedLayout(0, 32, 2)
            memory = gl.allocate_shared_memory(tiles.dtype, [STAGES, SHAPE[0], SHAPE[1] * SHAPE[2]], plain)
        else:
            rows: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SHAPE[0] * SHAPE[1], SHAPE[2]], tiles.dtype)
            memory = gl.allocate_shared_memory(tiles.dtype, [STAGES, SHAPE[0] * SHAPE[1], SHAPE[2]], rows)
    return memory


@gluon.jit
def _copy(tiles, at, bar, memory, there):
    """Have a tile of three dimensions copied to memory that has two."""
    copy_tile(tiles, at, bar, reinterpret(memory, tiles.dtype, tiles.block_type.shape, tiles.layout), pred=there)


@gluon.jit
def send_rows(sources, ring, slot, step, row, expert, n, there, X_TILES: gl.constexpr):
    """`send_weights` of an expert's rows from `row` on, or of these of each of two parts with n rows."""
    if len(sources.codes.block_type.shape) == 2:
        send_weights(sources, ring, slot, step, expert * n + row, there, X_TILES)
    else:
        bar = ring.ready.index(slot)
        WEIGHTS: gl.constexpr = sources.codes.block_type.nbytes + sources.scales.block_type.nbytes
        MORE: gl.constexpr = 0 if sources.codes2 is None else sources.codes2.block_type.nbytes
        mbarrier.expect(bar, WEIGHTS + MORE + X_TILES * sources.x.block_type.nbytes, pred=there)
        column = step * sources.codes.block_type.shape[2]
        _copy(sources.codes, [2 * expert, row, column], bar, ring.codes.index(slot), there)
        if sources.codes2 is not None:
            column = step * sources.codes2.block_type.shape[2]
            _copy(sources.codes2, [2 * expert, row, column], bar, ring.codes2.index(slot), there)
        pair = step * sources.scales.block_type.shape[0]
        _copy(sources.scales, [pair, 2 * expert, row], bar, ring.scales.index(slot), there)


@gluon.jit
def experts_hopper_kernel(
    x, codes, codes2, scales, order, tiles, y, gate, biases, numbers, n, k, layout: gl.constexpr, shape: gl.constexpr,
    KIND: gl.constexpr, PDL: gl.constexpr,
):
    """A program a tile of pairs by rows of an expert's weights; row order[i] of y f32 [pairs, n] is of row i of x.

    With `gate`, a Matrix, an expert has n rows of gate and n of up, which codes, codes2 and scales tell
    apart by a dimension more, and KIND of both, to which `biases` and which takes `numbers`, is left there, sorted.
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
        memory_of_halves(codes, STAGES, False), memory_of_halves(codes2, STAGES, False),
        memory_of_halves(scales, STAGES, True), memory_of(x, STAGES * 2), barriers(STAGES),
    )
    if PDL:
        gdc_wait()
    across = gl.cdiv(n, shape.rows)
    at = tiles + gl.program_id(0) // across * 3
    row = gl.program_id(0) % across * shape.rows
    expert, first, end = gl.load(at), gl.load(at + 1), gl.load(at + 2)
    if end > first:
        for i in gl.static_range(STAGES - 1):
            send_rows(sources, ring, i, i, row, expert, n, i * TILE < k, 2)
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
            send_rows(sources, ring, ahead % STAGES, ahead, row, expert, n, ahead < steps, 2)
            send_tokens(x, ring, ahead % STAGES, ahead, first, ahead < steps)
        acc = warpgroup_mma_wait(0, [acc])
        release(ring.ready, STAGES)
        if BLOCK_M >= 256:  # all addresses of a whole tile do not fit the registers
            halves = column_halves(acc)
            parts = column_halves(halves[0]) + column_halves(halves[1])
        else:
            parts = (acc,)
        for i in gl.static_range(4 if BLOCK_M >= 256 else 1):
            if gate is not None:
                place = first + i * 64
                store_gated(
                    parts[i], gate, biases, numbers, y.factors, place, end, row, expert, n, KIND, shape.warps
                )
            else:
                _store(parts[i], y, order, first + i * 64, end, row, expert, n, shape.warps)
