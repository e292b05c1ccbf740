"""Products of fp8 for compute capability 9.0, in Gluon: one warp copies tiles to shared memory, and two groups of four
multiply, 64 tokens of a tile each.

The groups wait for tiles and not for each other: while one adds up what it kept or ends its tile, the other has the
matrix units. Programs go from tile to tile, so that the first of a next one are there when it begins. What is computed
is what `gemm_fp8` says.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from octavo.backends.gpu.kernels.gemm_int8_hopper import barriers, finish, in_two, share_of, together
from octavo.backends.gpu.kernels.gluon_names import copy_tile

HALF = gl.constexpr(64)  # tokens of a tile that a group of warps takes
BLOCK = gl.constexpr(128)  # values of K, and rows, that share a scale
REGISTERS = gl.constexpr(240)  # of a thread that multiplies; those that copy need few


@gluon.constexpr_function
def _units(rows):
    """How the matrix units lay out sums [64 tokens, rows] of a group of warps."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 32])


@gluon.jit
def _copy(a, b, left, right, ready, free, m, n, k, GROUP: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr):
    """Fill the ring, a stage as soon as both groups have read it, for tile after tile."""
    BM: gl.constexpr = a.block_type.shape[0]
    BN: gl.constexpr = b.block_type.shape[0]
    BK: gl.constexpr = b.block_type.shape[1]
    count = 0
    for item in range(gl.program_id(0), gl.cdiv(m, BM) * gl.cdiv(n, BN) * SPLITS, gl.num_programs(0)):
        _, _, row, token, first, end = share_of(item, m, n, k, BM, BN, BK, GROUP, SPLITS)
        for step in range(first, end):
            slot = count % STAGES
            mbarrier.wait(free.index(slot), ((count // STAGES) & 1) ^ 1)
            bar = ready.index(slot)
            mbarrier.expect(bar, a.block_type.nbytes + b.block_type.nbytes)
            copy_tile(a, [token, step * BK], bar, left.index(slot))
            copy_tile(b, [row, step * BK], bar, right.index(slot))
            count += 1


@gluon.jit
def _begin(left, right, ready, count, acc, go_on: gl.constexpr, WHICH: gl.constexpr, STAGES: gl.constexpr):
    """Have the matrix units add a stage up once it is there, to `acc` or to nothing."""
    slot = count % STAGES
    mbarrier.wait(ready.index(slot), (count // STAGES) & 1)
    tokens = left.index(slot).slice(WHICH * HALF, HALF, 0)
    return warpgroup_mma(tokens, right.index(slot).permute((1, 0)), acc, use_acc=go_on, is_async=True)


@gluon.jit
def _sums(left, right, ready, free, count, steps, WHICH: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr):
    """What the matrix units make of so many stages from `count` on."""
    acc = gl.zeros([HALF, BN], gl.float32, _units(BN))
    gl.assume(steps > 0)
    for i in range(steps):
        acc = _begin(left, right, ready, count + i, acc, True, WHICH, STAGES)
        acc = warpgroup_mma_wait(1, [acc])
        mbarrier.arrive(free.index(gl.maximum(count + i - 1, 0) % STAGES), pred=i > 0)
    acc = warpgroup_mma_wait(0, [acc])
    mbarrier.arrive(free.index((count + steps - 1) % STAGES))
    return acc


@gluon.jit
def _sums_of_halves(
    left, right, ready, free, begun, count, steps, WHICH: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr
):
    """`_sums` with float32 sums of what the matrix units make of each stage, for half the rows and then the others: so
    many registers there are.

    The matrix units have nothing of a group to do while it adds, and should be with the other's then: the second group
    starts when they have done the first half of the first.
    """
    nothing = gl.zeros([HALF, BN // 2], gl.float32, _units(BN // 2))
    sums = (nothing, nothing)
    if WHICH == 1:
        mbarrier.wait(begun, 0)
    for i in range(steps):
        slot = (count + i) % STAGES
        mbarrier.wait(ready.index(slot), ((count + i) // STAGES) & 1)
        tokens = left.index(slot).slice(WHICH * HALF, HALF, 0)
        added = ()
        for half in gl.static_range(2):
            rows = right.index(slot).slice(half * (BN // 2), BN // 2, 0).permute((1, 0))
            part = warpgroup_mma(tokens, rows, nothing, use_acc=False, is_async=True)
            part = warpgroup_mma_wait(0, [part])
            if half == 1:
                mbarrier.arrive(free.index(slot))
            elif WHICH == 0:
                mbarrier.arrive(begun, pred=(count == 0) & (i == 0))
            added += (sums[half] + part,)
        sums = added
    return gl.join(sums[0], sums[1]).permute((0, 2, 1)).reshape([HALF, BN])


@gluon.jit
def _scale(scale_a, scale_b, tokens, row, m, block, blocks):
    """Of a block of 128 values: of each token, times that of the rows."""
    there = block < blocks
    scale = gl.load(scale_a + tokens.to(gl.int64) * blocks + block, mask=there & (tokens < m), other=0.0)
    return scale * gl.load(scale_b + (row // BLOCK).to(gl.int64) * blocks + block, mask=there, other=0.0)


@gluon.jit
def _add_stages(
    acc, left, right, ready, free, count, step, scale_a, scale_b, tokens, row, m, blocks, BLOCKS: gl.constexpr,
    WHICH: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, STEPS: gl.constexpr,
):  # fmt: skip
    """`acc` and so many stages, each summed by the matrix units and then scaled or not; while one is added they have
    the next."""
    nothing = gl.zeros([HALF, BN], gl.float32, _units(BN))
    parts, scales = (), ()
    for i in gl.static_range(STEPS):
        scales += (_scale(scale_a, scale_b, tokens, row, m, step + i, blocks) if BLOCKS else 1.0,)
        parts += (_begin(left, right, ready, count + i, nothing, False, WHICH, STAGES),)
    for i in gl.static_range(STEPS):
        part = warpgroup_mma_wait(STEPS - 1 - i, [parts[i]])
        mbarrier.arrive(free.index((count + i) % STAGES))
        acc += part * scales[i][:, None] if BLOCKS else part
    return acc


@gluon.jit
def _sums_of_stages(
    left, right, ready, free, count, step, steps, scale_a, scale_b, token, row, m, blocks, BLOCKS: gl.constexpr,
    WHICH: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """`_sums` with float32 sums of what the matrix units make of each stage, two at a time; the second group begins
    with one, so that the groups do not add at the same time."""
    gl.static_assert(not BLOCKS or BN == BLOCK)
    acc = gl.zeros([HALF, BN], gl.float32, _units(BN))
    tokens = token + gl.arange(0, HALF, gl.SliceLayout(1, _units(BN)))
    if WHICH == 1:
        acc = _add_stages(
            acc, left, right, ready, free, count, step, scale_a, scale_b, tokens, row, m, blocks, BLOCKS, WHICH, BN,
            STAGES, 1,
        )  # fmt: skip
    for i in range(WHICH, steps - 1, 2):
        acc = _add_stages(
            acc, left, right, ready, free, count + i, step + i, scale_a, scale_b, tokens, row, m, blocks, BLOCKS, WHICH,
            BN, STAGES, 2,
        )  # fmt: skip
    if (steps - WHICH) % 2 == 1:
        acc = _add_stages(
            acc, left, right, ready, free, count + steps - 1, step + steps - 1, scale_a, scale_b, tokens, row, m,
            blocks, BLOCKS, WHICH, BN, STAGES, 1,
        )  # fmt: skip
    return acc


@gluon.jit
def _multiply(
    left, right, ready, free, begun, scale_a, scale_b, bias, residual, y, shares, finished,
    m, n, k, y_stride, residual_stride, blocks, BN: gl.constexpr, BK: gl.constexpr,
    A_STEP: gl.constexpr, B_STEP: gl.constexpr, BLOCKS: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
    RESIDUAL: gl.constexpr, FAST: gl.constexpr, GROUP: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
    WHICH: gl.constexpr,
):  # fmt: skip
    """Multiply and finish the first (WHICH 0) or second 64 tokens of tile after tile."""
    BM: gl.constexpr = 2 * HALF
    count = 0
    for item in range(gl.program_id(0), gl.cdiv(m, BM) * gl.cdiv(n, BN) * SPLITS, gl.num_programs(0)):
        tile, split, row, token, first, end = share_of(item, m, n, k, BM, BN, BK, GROUP, SPLITS)
        token += WHICH * HALF
        if FAST:
            acc = _sums(left, right, ready, free, count, end - first, WHICH, BN, STAGES)
        elif BN > BLOCK and not BLOCKS:
            acc = _sums_of_halves(left, right, ready, free, begun, count, end - first, WHICH, BN, STAGES)
        else:
            acc = _sums_of_stages(
                left, right, ready, free, count, first, end - first, scale_a, scale_b, token, row, m, blocks, BLOCKS,
                WHICH, BN, STAGES,
            )  # fmt: skip
        count += end - first
        last = True
        if SPLITS > 1:
            acc, last = together(acc, shares, finished, 2 * tile + WHICH, split, SPLITS)
        if last:
            parts = in_two(acc)
            for i in gl.static_range(2):
                finish(
                    parts[i], scale_a, scale_b, scale_a, scale_a, bias, residual, y, row + i * (BN // 2), token, m, n,
                    y_stride, residual_stride, A_STEP, B_STEP, 0, 1.0, False, BIAS, ACTIVATION, RESIDUAL, 0, 4,
                )  # fmt: skip


@gluon.jit
def fp8_hopper_kernel(
    a, b, scale_a, scale_b, bias, residual, y, shares, finished,
    m, n, k, y_stride, residual_stride, blocks,
    A_STEP: gl.constexpr, B_STEP: gl.constexpr, BLOCKS: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
    RESIDUAL: gl.constexpr, FAST: gl.constexpr, GROUP: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As many programs as run at once take tile after tile of 128 tokens, and rows as the descriptor b says, and shares
    of K. Arguments are those of `gemm_fp8`; `finished` has two zeros for each tile."""
    BN: gl.constexpr = b.block_type.shape[0]
    BK: gl.constexpr = b.block_type.shape[1]
    left = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_type.shape, a.layout)  # noqa: RUF005
    right = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_type.shape, b.layout)  # noqa: RUF005
    ready, free, begun = barriers(STAGES, 1), barriers(STAGES, 2), barriers(1, 1).index(0)
    gl.warp_specialize(
        [
            (_multiply, (
                left, right, ready, free, begun, scale_a, scale_b, bias, residual, y, shares, finished, m, n, k,
                y_stride, residual_stride, blocks, BN, BK, A_STEP, B_STEP, BLOCKS, BIAS, ACTIVATION, RESIDUAL, FAST,
                GROUP, SPLITS, STAGES, 0,
            )),
            (_multiply, (
                left, right, ready, free, begun, scale_a, scale_b, bias, residual, y, shares, finished, m, n, k,
                y_stride, residual_stride, blocks, BN, BK, A_STEP, B_STEP, BLOCKS, BIAS, ACTIVATION, RESIDUAL, FAST,
                GROUP, SPLITS, STAGES, 1,
            )),
            (_copy, (a, b, left, right, ready, free, m, n, k, GROUP, SPLITS, STAGES)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )  # fmt: skip
