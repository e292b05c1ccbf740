# mypy: ignore-errors
"""Products of a few tokens in float16 with weights of 4 or 6 bits (W4A16): stream-K, several programs (CTAs) to a
multiprocessor.

Algorithm: stream-K (arXiv 2301.03598) of the product of `hopper_kernel`: codes become float16 in the registers from
    which `wgmma` reads W, and y^T = W x^T. Launched by PDL beside the previous kernel.
Tile:
    tiles            |   0   |   1   |   2   |   3   |      block_n rows of W, all tokens; each has steps of K
    CTAs             |  0  |  1  |  2  |  3  |  4  |  5  |  equal shares of all steps; shared tiles are added up
    multiprocessor   | CTA: ring + 4 warps | CTA | room for the next kernel's CTAs: first weights on their way |
    a step           128 or 256 values of K: codes | scales | x^T -> wgmma [block_n rows, block_m tokens]
Bound: bytes of the weights: a step of Llama 3 8B in Q4_K_M takes 1.50 times as long with 8 sequences as with one on an
    H200 (bench/results/gpu-steps-2026-11-24.json); the product's own share was not measured.
Tried: docs/log.md: "What waits for a kernel that fills the registers takes as long as a kernel"; "Small squares stay
    with `mma.sync` among even steps"; "Not worth it for eight sequences of Qwen3 1.7B".
Twin: `octavo.backends.reference.ops.mul_mat`, `octavo.backends.reference.ops.mul_mat_concat`

With few tokens there are few tiles; even shares of their steps keep all multiprocessors reading. The last CTA to finish
a shared tile adds the partial sums of all, in the order of the CTAs.

The four warps of a CTA both multiply and start the copies into its ring of shared memory. Where a multiprocessor has
room beside them, CTAs of the next kernel copy their first weights while this one's last tiles, and whatever lies
between the two kernels, are computed.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.compile.gluon_names import copy_tile, reinterpret
from octavo.backends.gpu.matmul.w4a16.hopper_kernel import (
    TILE,
    Sources,
    W4A16Ring,
    factor_of,
    halves_of,
    memory_of,
    send_weights,
)
from octavo.backends.gpu.matmul.w4a16.streamk_kernel import step_range, store_tile, whole_tile
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers


@gluon.jit
def send_stage_tokens(sources, ring, slot, step, there, token=0):
    """Have a stage's values of x copied, of tokens from `token` on."""
    at = step * sources.x.block_type.shape[1]
    copy_tile(sources.x, [token, at], ring.ready.index(slot), ring.x.index(slot), pred=there)


@gluon.jit
def _multiply(acc, weights, tokens, mma: gl.constexpr):
    """acc + float16 weights [rows, 32] @ shared x^T [32, tokens], by `wgmma`, which may still be running, or by
    `mma.sync`."""
    factor: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    if mma.version[0] == 3:
        acc = warpgroup_mma(factor_of(weights, factor), tokens, acc, is_async=True)
    else:
        acc = mma_v2(factor_of(weights, factor), tokens.load(gl.DotOperandLayout(1, mma, 2)), acc)
    return acc


@gluon.jit
def multiply_stage(acc, ring, slot, LAYOUT: gl.constexpr, DEPTH: gl.constexpr, mma: gl.constexpr):
    """acc + a stage's products, of which the last two may still be running."""
    bytes_: gl.constexpr = gl.DotOperandLayout(0, mma, 4)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])  # as the copy engine leaves rows of scales
    PAIRS: gl.constexpr = ring.scales.shape[1]
    ROWS: gl.constexpr = ring.scales.shape[2]
    WIDTH: gl.constexpr = ring.codes.shape[2] // DEPTH
    UPPER: gl.constexpr = TILE * LAYOUT.bits // 8 - WIDTH
    scales = reinterpret(ring.scales.index(slot), gl.int32, [PAIRS, ROWS], plain)
    for d in gl.static_range(DEPTH):
        codes = ring.codes.index(slot).slice(d * WIDTH, WIDTH, 1)
        codes2 = codes
        if LAYOUT.bits % 8 > 4:
            codes2 = ring.codes2.index(slot).slice(d * UPPER, UPPER, 1)
        pairs = scales.slice(d * (PAIRS // DEPTH), PAIRS // DEPTH, 0)
        for half in gl.static_range(2):
            low, high = halves_of(codes, codes2, pairs, half, LAYOUT, bytes_)
            # W [rows, 32] @ x^T [32, BLOCK_M]
            tokens = ring.x.index(slot).slice(d * TILE + half * 32, 32, 1).permute((1, 0))
            acc = _multiply(acc, low, tokens, mma)
            tokens = ring.x.index(slot).slice(d * TILE + 64 + half * 32, 32, 1).permute((1, 0))
            acc = _multiply(acc, high, tokens, mma)
            if mma.version[0] == 3:
                acc = warpgroup_mma_wait(2, [acc])
    return acc


@gluon.jit
def next_step(row, step, steps, BN: gl.constexpr):
    """The row and the step after these: the next step of K, or the first one of the next tile."""
    step += 1
    over = step == steps
    return gl.where(over, row + BN, row), gl.where(over, 0, step)


@gluon.jit
def _products(sources, terms, y, splits, size, place, layout: gl.constexpr, shape: gl.constexpr, PDL: gl.constexpr):
    """Compute program place[0]'s share of the steps, of place[1] programs, and store the tiles that it finishes."""
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    DEPTH: gl.constexpr = shape.depth
    work = step_range(gl.cdiv(size.k, TILE * DEPTH), gl.cdiv(size.n, BN), place[0], place[1])
    left = work.stop - work.start
    ring = W4A16Ring(
        memory_of(sources.codes, STAGES), memory_of(sources.codes2, STAGES), memory_of(sources.scales, STAGES),
        memory_of(sources.x, STAGES), barriers(STAGES),
    )
    begin = work.start // work.steps
    row, step = begin * BN, work.start - begin * work.steps
    for i in gl.static_range(STAGES - 1):
        send_weights(sources, ring, i, step, row, i < left, X_TILES=1)
        row, step = next_step(row, step, work.steps, BN)
    if PDL:
        gdc_wait()
    token_step = work.start - begin * work.steps
    for i in gl.static_range(STAGES - 1):
        send_stage_tokens(sources, ring, i, token_step, i < left)
        _, token_step = next_step(0, token_step, work.steps, BN)
    left -= STAGES - 1  # steps whose copies are still to be started
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [shape.warps, 1], [16, BM, 16])
    slot, phase, free = 0, 0, STAGES - 1
    for tile in range(begin, gl.cdiv(work.stop, work.steps)):
        first = gl.maximum(work.start - tile * work.steps, 0)
        steps = gl.minimum(work.stop - tile * work.steps, work.steps) - first
        gl.assume(steps > 0)
        acc = gl.zeros([BN, BM], gl.float32, mma)
        for _ in range(steps):
            mbarrier.wait(ring.ready.index(slot), phase)
            acc = multiply_stage(acc, ring, slot, layout, DEPTH, mma)
            send_weights(sources, ring, free, step, row, left > 0, X_TILES=1)
            send_stage_tokens(sources, ring, free, step, left > 0)
            row, step = next_step(row, step, work.steps, BN)
            left -= 1
            free = slot
            phase = gl.where(slot == STAGES - 1, 1 - phase, phase)
            slot = gl.where(slot == STAGES - 1, 0, slot + 1)
        acc = warpgroup_mma_wait(0, [acc])
        acc, last = whole_tile(acc, splits, work, tile, first, 0, 1)
        if last:
            store_tile(acc, terms, y, tile * BN, 0, size)


@gluon.jit
def w4a16_multicta_kernel(
    x, codes, codes2, scales, terms, y, splits, size, layout: gl.constexpr, shape: gl.constexpr, PDL: gl.constexpr
):
    """y f32 [M, N] = x W^T + terms. As many programs as fit the card, or fewer.

    x, codes, codes2 and scales are descriptors of tiles that are copied: of x float16 [M, K], with values in the order
    of `reordered`; of W's codes [N, K], where codes of 6 bits have their upper two in codes2; of pairs of float16
    scales. splits is memory for partial sums, and a counter for each tile; size is M, N and K.
    """
    if PDL:
        gdc_launch_dependents()
    place = gl.program_id(0), gl.num_programs(0)
    _products(Sources(codes, codes2, scales, x), terms, y, splits, size, place, layout, shape, PDL)


@gluon.jit
def w4a16_multicta_pair_kernel(
    x, codes, codes2, scales, other_codes, other_codes2, other_scales, one, other, pair: gl.constexpr,
    PDL: gl.constexpr,
):
    """`w4a16_multicta_kernel` of x and two matrices of different layouts: the first one.programs programs have `one`,
    the rest the `other`. These are MultiCtaPart (y, splits, size, programs); `pair` has their layouts and shapes."""
    if PDL:
        gdc_launch_dependents()
    program = gl.program_id(0)
    sources, others = Sources(codes, codes2, scales, x), Sources(other_codes, other_codes2, other_scales, x)
    if program < one.programs:
        _products(sources, (), one.y, one.splits, one.size, (program, one.programs), pair.layout, pair.shape, PDL)
    else:
        place = program - one.programs, other.programs
        _products(others, (), other.y, other.splits, other.size, place, pair.other_layout, pair.other_shape, PDL)
