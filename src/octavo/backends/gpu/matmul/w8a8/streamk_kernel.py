# mypy: ignore-errors
"""Products of few tokens with weights of the same type, int8, fp8, bfloat16 or float16, for compute capability 9.0, in
Gluon.

Algorithm: stream-K (arXiv 2301.03598), several programs (CTAs) to a multiprocessor, as `streamk_multicta_kernel`; sums
    of fp8 promoted to float32 after each step (DeepSeek-V3, arXiv 2412.19437).
Tile:
    tiles     |   0   |   1   |   2   |   3   |      block_n rows of W, all tokens; each has steps of block_k values
    CTAs      |  0  |  1  |  2  |  3  |  4  |  5  |  equal shares of all steps; shared tiles are added up
    a step    W [block_n, block_k] | a [block_m, block_k] by TMA -> wgmma, sums [block_n rows, block_m tokens]
Bound: bytes of the weights, read at 0.83 of the limit with 8 tokens of 28,672 x 4096 int8 or fp8 on an H200 and 0.90 of
    BF16 (docs/log.md, "Few tokens by `mma.sync` straight from memory are slower"); with 128 tokens at 0.65.
Tried: docs/log.md: "Few tokens by `mma.sync` straight from memory are slower"; "Even shares cost what is added up".
Twin: `octavo.ops.definition.int8_gemm`, `octavo.ops.definition.fp8_gemm`, `octavo.backends.reference.ops.mul_mat`

With few tokens there are few tiles, and whole ones leave multiprocessors without work: 96 tiles of 64 of 6,144 rows for
132. A CTA's ring runs on from tile to tile, and its first weights are asked for before the kernel before has ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.compile.gluon_names import copy_tile
from octavo.backends.gpu.matmul.w4a16.hopper_kernel import memory_of
from octavo.backends.gpu.matmul.w4a16.streamk_kernel import step_range, whole_tile
from octavo.backends.gpu.matmul.w4a16.streamk_multicta_kernel import next_step
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers, column_halves, finish


class StreamRing(NamedTuple):
    """Shared memory for tiles of the next steps: weights [stages, block_n, block_k], tokens [stages, block_m, block_k],
    and a barrier for each stage."""

    weights: Any
    tokens: Any
    ready: Any


@gluon.constexpr_function
def sums_layout(a, tokens, num_warps):
    """How the tensor cores lay out sums [rows, tokens] of numbers of the type of a, warps one below the other."""
    return gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, tokens, 256 // a.dtype.primitive_bitwidth])


@gluon.jit
def _fetch_weights(a, b, ring, slot, row, step, exists):
    """Have the weights of a step copied to a slot of the ring, if there is such a step; its tokens are expected,
    too."""
    bar = ring.ready.index(slot)
    mbarrier.expect(bar, b.block_type.nbytes + a.block_type.nbytes, pred=exists)
    copy_tile(b, [row, step * b.block_type.shape[1]], bar, ring.weights.index(slot), pred=exists)


@gluon.jit
def _fetch_tokens(a, ring, slot, step, exists):
    copy_tile(a, [0, step * a.block_type.shape[1]], ring.ready.index(slot), ring.tokens.index(slot), pred=exists)


@gluon.jit
def _block_scales(blocks, m, row, block, BM: gl.constexpr, mma: gl.constexpr):
    """Of a block of 128 values: the scale of each token times that of the rows, [1, BM]."""
    tokens = gl.arange(0, BM, gl.SliceLayout(0, mma))
    scale = gl.load(blocks.a + tokens.to(gl.int64) * blocks.blocks + block, mask=tokens < m, other=0.0)  # [BM]
    return (scale * gl.load(blocks.b + (row // 128).to(gl.int64) * blocks.blocks + block)).expand_dims(0)


@gluon.jit
def _here(number):
    """The number, as the compiler learns only here: what it makes of it, such as addresses, is not kept all along."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _store(acc, end, size, row, token, config: gl.constexpr, num_warps: gl.constexpr):
    """`finish` straight from where the tensor cores left sums, 16 of a thread at a time: more addresses do not fit the
    registers."""
    C: gl.constexpr = acc.shape[1]
    if C > 8 and acc.shape[0] * C > 512 * num_warps:
        low, high = column_halves(acc)
        _store(low, end, size, row, token, config, num_warps)
        _store(high, end, size, row, token + C // 2, config, num_warps)
    else:
        finish(acc, end, size, row, _here(token), config, 1, num_warps, True)


@gluon.jit
def streamk_hopper_kernel(
    a, b, size, blocks, end, split_k, shape: gl.constexpr, config: gl.constexpr, num_warps: gl.constexpr,
    PDL: gl.constexpr,
):
    """As many programs as fit the card, or fewer, of up to block_m tokens; a and b are descriptors of tiles.

    blocks is a BlockScales of fp8, where block_k is 128 and block_n divides it, or None. split_k is memory for two
    tiles of sums a program, int32 or float32, and a counter for each tile. PDL: the kernel may begin before the one
    before it ends, if b was there before that.
    """
    if PDL:
        gdc_launch_dependents()
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    FLOAT8: gl.constexpr = b.dtype.is_fp8()
    SUMS: gl.constexpr = gl.int32 if b.dtype.is_int() else gl.float32
    mma: gl.constexpr = sums_layout(a, BM, num_warps)
    work = step_range(gl.cdiv(size.k, shape.block_k), gl.cdiv(size.n, BN), gl.program_id(0), gl.num_programs(0))
    left = work.stop - work.start
    ring = StreamRing(memory_of(b, STAGES), memory_of(a, STAGES), barriers(STAGES))
    begin = work.start // work.steps
    row, step = begin * BN, work.start - begin * work.steps
    token_step = step
    for i in gl.static_range(STAGES - 1):
        _fetch_weights(a, b, ring, i, row, step, i < left)
        row, step = next_step(row, step, work.steps, BN)
    if PDL:
        gdc_wait()
    for i in gl.static_range(STAGES - 1):
        _fetch_tokens(a, ring, i, token_step, i < left)
        _, token_step = next_step(0, token_step, work.steps, BN)
    left -= STAGES - 1  # steps whose copies are still to be started
    slot, phase, free = 0, 0, STAGES - 1
    for tile in range(begin, gl.cdiv(work.stop, work.steps)):
        first = gl.maximum(work.start - tile * work.steps, 0)
        steps = gl.minimum(work.stop - tile * work.steps, work.steps) - first
        gl.assume(steps > 0)
        acc = gl.zeros([BN, BM], SUMS, mma)
        for at in range(steps):
            if blocks is not None:
                scales = _block_scales(blocks, size.m, tile * BN, first + at, BM, mma)
            mbarrier.wait(ring.ready.index(slot), phase)
            tokens = ring.tokens.index(slot).permute((1, 0))
            if FLOAT8:
                nothing = gl.zeros([BN, BM], SUMS, mma)
                part = warpgroup_mma(ring.weights.index(slot), tokens, nothing, use_acc=False, is_async=True)
                part = warpgroup_mma_wait(0, [part])  # [BN, BK] @ [BK, BM]
                acc += part * scales if blocks is not None else part
            else:
                acc = warpgroup_mma(ring.weights.index(slot), tokens, acc, is_async=True)  # [BN, BK] @ [BK, BM]
                acc = warpgroup_mma_wait(1, [acc])
            _fetch_weights(a, b, ring, free, row, step, left > 0)
            _fetch_tokens(a, ring, free, step, left > 0)
            row, step = next_step(row, step, work.steps, BN)
            left -= 1
            free = slot
            phase = gl.where(slot == STAGES - 1, 1 - phase, phase)
            slot = gl.where(slot == STAGES - 1, 0, slot + 1)
        if not FLOAT8:
            acc = warpgroup_mma_wait(0, [acc])
        acc, last = whole_tile(acc, split_k, work, tile, first, 0, 1)
        if last:
            _store(acc, end, size, tile * BN, 0, config, num_warps)
