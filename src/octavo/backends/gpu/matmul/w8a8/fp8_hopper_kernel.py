# mypy: ignore-errors
"""GEMM of fp8 for compute capability 9.0, in Gluon.

Algorithm: CUTLASS's ping-pong kernel, warp-specialized and persistent, with sums promoted to float32 as in DeepSeek-V3
    (arXiv 2412.19437).
Tile:
    producer warp      a, b | a, b | a, b | ...      TMA into a ring of `stages`
    consumer group 0   wgmma | promote | wgmma | ... | epilogue      tokens 0 to 63 of the tile, x 128 or 256 rows
    consumer group 1        wgmma | promote | wgmma | ...            tokens 64 to 127
Bound: instructions of the tensor cores; with 128 x 128 tiles, the L2's bytes. 1,195 TFLOPS at 8192 x 8192 x 8192 on an
    H100, 0.95 of the library's; 987 in blocks of 128, 0.79 (bench/results/gpu-gemm-2026-11-21.json).
Tried: docs/log.md: "Two groups of warps that do the same stay in step, and then wait together"; "ptxas gives every
    matrix instruction under way registers of its own until none is"; "At 8 bits a tile of 128 x 128 asks for all that
    the L2 can send"; "Gluon (Triton 3.6) drops what a loop carries".
Twin: `octavo.ops.definition.fp8_gemm`

The groups wait for tiles and not for each other: while one adds up what it kept or is in its epilogue, the other has
the tensor cores. `tile_scheduler` gives programs tile after tile, so that the first tiles of a next one are there when
it begins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from octavo.backends.gpu.compile.gluon_names import copy_tile
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers, column_halves, finish, sum_splits, tile_scheduler

HALF = gl.constexpr(64)  # tokens of a tile that a group of warps takes
BLOCK = gl.constexpr(128)  # values of K, and rows, that share a scale
REGISTERS = gl.constexpr(240)  # of a thread that multiplies; those that copy need few


class Fp8Ring(NamedTuple):
    """Shared memory for tiles of the next steps.

    tokens   [stages, 128, block_k]
    weights  [stages, block_n, block_k]
    ready    a barrier for each stage, at which the copy arrives
    free     a barrier for each stage, at which both groups arrive
    begun    a barrier, at which the first group arrives once
    """

    tokens: Any
    weights: Any
    ready: Any
    free: Any
    begun: Any


@gluon.constexpr_function
def _sums_layout(rows):
    """How the tensor cores lay out sums [64 tokens, rows] of a group of warps."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 32])


@gluon.jit
def _producer(a, b, ring, size, shape: gl.constexpr):
    """Fill the ring, a stage as soon as both groups have read it, for tile after tile."""
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    BK: gl.constexpr = shape.block_k
    count = 0
    items = gl.cdiv(size.m, BM) * gl.cdiv(size.n, BN) * shape.split_k
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        _, _, row, token, first, end = tile_scheduler(
            item, size.m, size.n, size.k, BM, BN, BK, shape.group_m, shape.split_k
        )
        for step in range(first, end):
            slot = count % shape.stages
            mbarrier.wait(ring.free.index(slot), ((count // shape.stages) & 1) ^ 1)
            bar = ring.ready.index(slot)
            mbarrier.expect(bar, a.block_type.nbytes + b.block_type.nbytes)
            copy_tile(a, [token, step * BK], bar, ring.tokens.index(slot))
            copy_tile(b, [row, step * BK], bar, ring.weights.index(slot))
            count += 1


@gluon.jit
def _begin(ring, count, acc, go_on: gl.constexpr, WHICH: gl.constexpr, STAGES: gl.constexpr):
    """Have the tensor cores add a stage up once it is there, to `acc` or to nothing."""
    slot = count % STAGES
    mbarrier.wait(ring.ready.index(slot), (count // STAGES) & 1)
    tokens = ring.tokens.index(slot).slice(WHICH * HALF, HALF, 0)
    rows = ring.weights.index(slot).permute((1, 0))
    return warpgroup_mma(tokens, rows, acc, use_acc=go_on, is_async=True)  # [64, BK] @ [BK, BN]


@gluon.jit
def _sums(ring, count, steps, WHICH: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr):
    """What the tensor cores make of `steps` stages from `count` on, [64, BN]."""
    acc = gl.zeros([HALF, BN], gl.float32, _sums_layout(BN))
    gl.assume(steps > 0)
    for i in range(steps):
        acc = _begin(ring, count + i, acc, True, WHICH, STAGES)
        acc = warpgroup_mma_wait(1, [acc])
        mbarrier.arrive(ring.free.index(gl.maximum(count + i - 1, 0) % STAGES), pred=i > 0)
    acc = warpgroup_mma_wait(0, [acc])
    mbarrier.arrive(ring.free.index((count + steps - 1) % STAGES))
    return acc


@gluon.jit
def _sums_of_halves(ring, count, steps, WHICH: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr):
    """`_sums` with float32 sums of what the tensor cores make of each stage, for half the rows and then the others, as
    there are no more registers.

    The tensor cores have nothing of a group to do while it adds, and should be with the other's then: the second group
    starts when they have done the first half of the first.
    """
    nothing = gl.zeros([HALF, BN // 2], gl.float32, _sums_layout(BN // 2))
    sums = (nothing, nothing)
    if WHICH == 1:
        mbarrier.wait(ring.begun, 0)
    for i in range(steps):
        slot = (count + i) % STAGES
        mbarrier.wait(ring.ready.index(slot), ((count + i) // STAGES) & 1)
        tokens = ring.tokens.index(slot).slice(WHICH * HALF, HALF, 0)
        added = ()
        for half in gl.static_range(2):
            rows = ring.weights.index(slot).slice(half * (BN // 2), BN // 2, 0).permute((1, 0))
            part = warpgroup_mma(tokens, rows, nothing, use_acc=False, is_async=True)  # [64, BK] @ [BK, BN / 2]
            part = warpgroup_mma_wait(0, [part])
            if half == 1:
                mbarrier.arrive(ring.free.index(slot))
            elif WHICH == 0:
                mbarrier.arrive(ring.begun, pred=(count == 0) & (i == 0))
            added += (sums[half] + part,)
        sums = added
    return gl.join(sums[0], sums[1]).permute((0, 2, 1)).reshape([HALF, BN])


@gluon.jit
def _block_scale(blocks, tokens, row, m, block):
    """Of a block of 128 values: the scale of each token times that of the rows, [64]."""
    exists = block < blocks.blocks
    at = blocks.a + tokens.to(gl.int64) * blocks.blocks + block
    scale = gl.load(at, mask=exists & (tokens < m), other=0.0)  # [tokens]
    return scale * gl.load(blocks.b + (row // BLOCK).to(gl.int64) * blocks.blocks + block, mask=exists, other=0.0)


@gluon.jit
def _add_stages(
    acc, ring, count, step, blocks, tokens, row, m, WHICH: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
    STEPS: gl.constexpr,
):
    """`acc` and STEPS stages, each summed by the tensor cores and then scaled or not; while one is added they have the
    next."""
    nothing = gl.zeros([HALF, BN], gl.float32, _sums_layout(BN))
    parts, scales = (), ()
    for i in gl.static_range(STEPS):
        scales += (_block_scale(blocks, tokens, row, m, step + i) if blocks is not None else 1.0,)
        parts += (_begin(ring, count + i, nothing, False, WHICH, STAGES),)
    for i in gl.static_range(STEPS):
        part = warpgroup_mma_wait(STEPS - 1 - i, [parts[i]])
        mbarrier.arrive(ring.free.index((count + i) % STAGES))
        acc += part * scales[i][:, None] if blocks is not None else part
    return acc


@gluon.jit
def _sums_of_stages(
    ring, count, step, steps, blocks, token, row, m, WHICH: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr
):
    """`_sums` with float32 sums of what the tensor cores make of each stage, two at a time; the second group begins
    with one, so that the groups do not add at the same time."""
    gl.static_assert(blocks is None or BN == BLOCK)
    acc = gl.zeros([HALF, BN], gl.float32, _sums_layout(BN))
    tokens = token + gl.arange(0, HALF, gl.SliceLayout(1, _sums_layout(BN)))
    if WHICH == 1:
        acc = _add_stages(acc, ring, count, step, blocks, tokens, row, m, WHICH, BN, STAGES, 1)
    for i in range(WHICH, steps - 1, 2):
        acc = _add_stages(acc, ring, count + i, step + i, blocks, tokens, row, m, WHICH, BN, STAGES, 2)
    if (steps - WHICH) % 2 == 1:
        last = steps - 1
        acc = _add_stages(acc, ring, count + last, step + last, blocks, tokens, row, m, WHICH, BN, STAGES, 1)
    return acc


@gluon.jit
def _consumer(
    ring, size, blocks, end, split_k, shape: gl.constexpr, config: gl.constexpr, FAST: gl.constexpr,
    WHICH: gl.constexpr,
):
    """Multiply and finish the first (WHICH 0) or second 64 tokens of tile after tile."""
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    SPLIT_K: gl.constexpr = shape.split_k
    count = 0
    items = gl.cdiv(size.m, BM) * gl.cdiv(size.n, BN) * SPLIT_K
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile, split, row, token, first, end_step = tile_scheduler(
            item, size.m, size.n, size.k, BM, BN, shape.block_k, shape.group_m, SPLIT_K
        )
        token += WHICH * HALF
        steps = end_step - first
        if FAST:
            acc = _sums(ring, count, steps, WHICH, BN, STAGES)
        elif BN > BLOCK and blocks is None:
            acc = _sums_of_halves(ring, count, steps, WHICH, BN, STAGES)
        else:
            acc = _sums_of_stages(ring, count, first, steps, blocks, token, row, size.m, WHICH, BN, STAGES)
        count += steps
        last = True
        if SPLIT_K > 1:
            acc, last = sum_splits(acc, split_k, 2 * tile + WHICH, split, SPLIT_K)
        if last:
            parts = column_halves(acc)
            for i in gl.static_range(2):
                finish(parts[i], end, size, row + i * (BN // 2), token, config, 0, 4)


@gluon.jit
def fp8_hopper_kernel(a, b, size, blocks, end, split_k, shape: gl.constexpr, config: gl.constexpr, FAST: gl.constexpr):
    """As many programs as run at once take tile after tile of 128 tokens by block_n rows, and parts of K.

    a and b are descriptors of tiles. FAST leaves all sums to the tensor cores. Other arguments are those of
    `fp8_kernel`; `split_k` has two counters for each tile.
    """
    STAGES: gl.constexpr = shape.stages
    gl.static_assert(shape.block_m == 2 * HALF)
    left = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_type.shape, a.layout)  # noqa: RUF005
    right = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)  # noqa: RUF005
    ring = Fp8Ring(left, right, barriers(STAGES, 1), barriers(STAGES, 2), barriers(1, 1).index(0))
    gl.warp_specialize(
        [
            (_consumer, (ring, size, blocks, end, split_k, shape, config, FAST, 0)),
            (_consumer, (ring, size, blocks, end, split_k, shape, config, FAST, 1)),
            (_producer, (a, b, ring, size, shape)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )
