# mypy: ignore-errors
"""Products of a few tokens in int8 with 4-bit weights (W4A8), in Gluon: stream-K, several programs (CTAs) to a
multiprocessor.

Algorithm: `int8_hopper_kernel`'s product (y^T = W a^T, codes unpacked in registers) in the even shares of `w4a16`'s
    `streamk_multicta_kernel`. Scales of groups multiply each group's int32 sums, which are added up in float32.
Tile:
    tiles            |   0   |   1   |   2   |   3   |      block_n rows of W, all tokens; each has steps of 256 values
    CTAs             |  0  |  1  |  2  |  3  |  4  |  5  |  equal shares of all steps; shared tiles are added up
    a step           two groups: codes [block_n, 64 bytes] -> wgmma -> int32 [block_n, block_m] (* scale -> float32)
Bound: bytes of the weights; not measured yet.
Tried: docs/log.md: "Stripes for the W4A8 product".
Twin: `octavo.ops.definition.w4a8_gemm`

A stage's barrier is of its codes, its scales and its tokens. Sums of a group have to leave the tensor cores before they
are scaled; meanwhile other programs of the multiprocessor multiply.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.compile.gluon_names import copy_tile, reinterpret
from octavo.backends.gpu.matmul.w4a16.hopper_kernel import memory_of
from octavo.backends.gpu.matmul.w4a16.streamk_kernel import step_range, whole_tile
from octavo.backends.gpu.matmul.w4a16.streamk_multicta_kernel import next_step
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers, finish
from octavo.backends.gpu.matmul.w8a8.int8_hopper_kernel import sums_layout
from octavo.backends.gpu.matmul.w8a8.w4a8_kernel import unpacked

HALF = gl.constexpr(64)  # bytes of a group's codes
STEP = gl.constexpr(256)  # values of K


class Sources(NamedTuple):
    """Descriptors of tiles: of codes, of scales of groups or None, and of tokens."""

    packed: Any
    groups: Any
    a: Any


class FewTokensRing(NamedTuple):
    """Shared memory for tiles of `Sources`, and a barrier for each stage."""

    packed: Any
    groups: Any
    a: Any
    ready: Any


@gluon.jit
def _send_weights(sources, ring, slot, step, row, there):
    """Have a step's codes and scales copied to a stage of the ring, if there is such a step; tokens are expected."""
    bar = ring.ready.index(slot)
    SCALES: gl.constexpr = 0 if sources.groups is None else sources.groups.block_type.nbytes
    mbarrier.expect(bar, sources.packed.block_type.nbytes + SCALES + sources.a.block_type.nbytes, pred=there)
    copy_tile(sources.packed, [row, step * (STEP // 2)], bar, ring.packed.index(slot), pred=there)
    if sources.groups is not None:
        copy_tile(sources.groups, [step * 2, row], bar, ring.groups.index(slot), pred=there)


@gluon.jit
def _send_tokens(sources, ring, slot, step, there):
    """Have a step's values of all tokens copied to a stage of the ring."""
    copy_tile(sources.a, [0, step * STEP], ring.ready.index(slot), ring.a.index(slot), pred=there)


@gluon.jit
def _group_sums(acc, ring, slot, part: gl.constexpr, mma: gl.constexpr):
    """acc + the products of a stage's group, 16 times as large and under way."""
    codes = ring.packed.index(slot).slice(part * HALF, HALF, 1).load(gl.DotOperandLayout(0, mma, 4))
    low, high = unpacked(codes, "ptx")
    tokens = ring.a.index(slot)
    left = tokens.slice(part * 2 * HALF, HALF, 1).permute((1, 0))
    right = tokens.slice(part * 2 * HALF + HALF, HALF, 1).permute((1, 0))
    acc = warpgroup_mma(low, left, acc, is_async=True)  # [block_n, 64] @ [64, block_m]
    return warpgroup_mma(high, right, acc, is_async=True)


@gluon.jit
def _multiply_stage(acc, ring, slot, GROUPED: gl.constexpr, mma: gl.constexpr):
    """acc + a stage's products; those of integers to the end of a row may be under way."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    if GROUPED:
        plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])  # as the copy engine leaves rows of scales
        scales = reinterpret(ring.groups.index(slot), gl.float16, [2, R], plain)
        zero = gl.zeros([R, C], gl.int32, mma)
        one = _group_sums(zero, ring, slot, 0, mma)
        other = _group_sums(zero, ring, slot, 1, mma)
        of_one = scales.slice(0, 1, 0).permute((1, 0)).load(mma).to(gl.float32)  # [block_n, 1]
        of_other = scales.slice(1, 1, 0).permute((1, 0)).load(mma).to(gl.float32)
        one = warpgroup_mma_wait(2, [one])
        acc += one.to(gl.float32) * of_one
        other = warpgroup_mma_wait(0, [other])
        acc += other.to(gl.float32) * of_other
    else:
        for part in gl.static_range(2):
            acc = _group_sums(acc, ring, slot, part, mma)
            acc = warpgroup_mma_wait(2, [acc])
    return acc


@gluon.jit
def w4a8_multicta_kernel(
    a, packed, groups, end, splits, size, shape: gl.constexpr, config: gl.constexpr, PDL: gl.constexpr
):
    """y [M, N] of int8 a [M, K] and 4-bit W [N, K]; as many programs as fit the card, or fewer.

    a, packed and groups are descriptors of tiles that are copied: of tokens, of bytes of codes [N, K / 2], and of
    float16 scales [K / 128, N], or None. `end` and config are those of `finish`; splits is memory for partial sums,
    and a counter for each tile; size is M, N and K.
    """
    if PDL:
        gdc_launch_dependents()
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    GROUPED: gl.constexpr = groups is not None
    sources = Sources(packed, groups, a)
    work = step_range(gl.cdiv(size.k, STEP), gl.cdiv(size.n, BN), gl.program_id(0), gl.num_programs(0))
    left = work.stop - work.start
    ring = FewTokensRing(memory_of(packed, STAGES), memory_of(groups, STAGES), memory_of(a, STAGES), barriers(STAGES))
    begin = work.start // work.steps
    row, step = begin * BN, work.start - begin * work.steps
    for i in gl.static_range(STAGES - 1):
        _send_weights(sources, ring, i, step, row, i < left)
        row, step = next_step(row, step, work.steps, BN)
    if PDL:
        gdc_wait()
    token_step = work.start - begin * work.steps
    for i in gl.static_range(STAGES - 1):
        _send_tokens(sources, ring, i, token_step, i < left)
        _, token_step = next_step(0, token_step, work.steps, BN)
    left -= STAGES - 1  # steps whose copies are still to be started
    mma: gl.constexpr = sums_layout(BM, shape.warps)
    slot, phase, free = 0, 0, STAGES - 1
    for tile in range(begin, gl.cdiv(work.stop, work.steps)):
        first = gl.maximum(work.start - tile * work.steps, 0)
        steps = gl.minimum(work.stop - tile * work.steps, work.steps) - first
        gl.assume(steps > 0)
        acc = gl.zeros([BN, BM], gl.float32 if GROUPED else gl.int32, mma)
        for _ in range(steps):
            mbarrier.wait(ring.ready.index(slot), phase)
            acc = _multiply_stage(acc, ring, slot, GROUPED, mma)
            _send_weights(sources, ring, free, step, row, left > 0)
            _send_tokens(sources, ring, free, step, left > 0)
            row, step = next_step(row, step, work.steps, BN)
            left -= 1
            free = slot
            phase = gl.where(slot == STAGES - 1, 1 - phase, phase)
            slot = gl.where(slot == STAGES - 1, 0, slot + 1)
        acc = warpgroup_mma_wait(0, [acc])
        acc, last = whole_tile(acc, splits, work, tile, first, 0, 1)
        if last:
            finish(acc, end, size, tile * BN, 0, config, 1, shape.warps)
