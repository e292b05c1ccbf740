"""Products of int8 numbers for compute capability 9.0, in Gluon: two of a warp group's products are under way at once.

Triton waits for each product of integers before it goes on, and so the matrix units wait while codes are unpacked. Here
they still add up the part before. All compute y^T = W a^T, rows of the weights by tokens; a ring of tiles in shared
memory is filled ahead by the bulk copy engine. What is computed is what `gemm_int8` and `gemm_w4a8` say.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from octavo.backends.gpu.kernels.epilogue import activated, steps_of, tile_of
from octavo.backends.gpu.kernels.gemm_w4a8 import folded_twice, twice, unpacked
from octavo.backends.gpu.kernels.gluon_names import barrier, copy_tile

HALF = gl.constexpr(64)  # bytes of 128 codes of 4 bits


@gluon.constexpr_function
def units_of(tokens, num_warps):
    """How the matrix units lay out sums [rows, tokens], warps one below the other."""
    return gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, min(tokens, 128), 32])


@gluon.jit
def share_of(
    item, m, n, k, BM: gl.constexpr, BN: gl.constexpr, STEP: gl.constexpr, GROUP: gl.constexpr, SPLITS: gl.constexpr
):
    """The tile of a program's item, which of those that share it it is, the tile's first row and token, its first step
    and the one after its last. There is one at least, beyond K if need be, where all is zero: of a loop that may run no
    times the compiler makes one whose matrix instructions wait for each other."""
    tiles = gl.cdiv(m, BM) * gl.cdiv(n, BN)
    tile, split = item % tiles, item // tiles
    row, token = tile_of(tile, gl.cdiv(n, BN), gl.cdiv(m, BM), GROUP)
    first, end = steps_of(split, k, STEP, SPLITS)
    end = gl.maximum(end, first + 1)
    gl.assume(end > first)
    return tile, split, row * BN, token * BM, first, end


@gluon.jit
def barriers(STAGES: gl.constexpr, COUNT: gl.constexpr = 1):
    """A barrier for each stage of a ring, that so many arrive at."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=COUNT)
    return ready


@gluon.jit
def release(ready, STAGES: gl.constexpr):
    """Give back what `barriers` took."""
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(stage))


@gluon.jit
def in_two(acc):
    """The left and the right half of columns."""
    return acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def _ring(weights, a, STAGES: gl.constexpr, TILES: gl.constexpr):
    """Shared memory for STAGES tiles of weights and of tokens (TILES a stage), and a barrier for each stage."""
    left = gl.allocate_shared_memory(gl.int8, [STAGES] + weights.block_type.shape, weights.layout)  # noqa: RUF005
    right = gl.allocate_shared_memory(gl.int8, [STAGES * TILES] + a.block_type.shape, a.layout)  # noqa: RUF005
    return left, right, barriers(STAGES)


@gluon.jit
def _send_for(
    weights, a, left, right, ready, stage, step, row, token, there, STAGES: gl.constexpr, TILES: gl.constexpr
):
    """Have the tiles of a step copied to a stage of the ring, if there is such a step."""
    slot = stage % STAGES
    bar = ready.index(slot)
    mbarrier.expect(bar, weights.block_type.nbytes + TILES * a.block_type.nbytes, pred=there)
    copy_tile(weights, [row, step * weights.block_type.shape[1]], bar, left.index(slot), pred=there)
    for i in gl.static_range(TILES):
        at = (step * TILES + i) * a.block_type.shape[1]
        copy_tile(a, [token, at], bar, right.index(slot * TILES + i), pred=there)


@gluon.jit
def _scales(groups, there, group, group_step, end):
    """Scales of rows of a group and of the next."""
    one = gl.load(groups + group * group_step, mask=there & (group < end), other=0.0)
    return one, gl.load(groups + (group + 1) * group_step, mask=there & (group + 1 < end), other=0.0)


@gluon.jit
def together(acc, shares, finished, tile, split, SPLITS: gl.constexpr):
    """`epilogue.together`."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    down = gl.arange(0, R, gl.SliceLayout(1, acc.type.layout))[:, None]
    across = gl.arange(0, C, gl.SliceLayout(0, acc.type.layout))[None, :]
    at = shares + tile.to(gl.int64) * (SPLITS * R * C) + down * C + across
    gl.store(at + split * (R * C), acc)
    barrier()
    last = gl.atomic_add(finished + tile, 1, sem="acq_rel") == SPLITS - 1
    if last:
        gl.store(finished + tile, 0)
        acc = gl.load(at, cache_modifier=".cg")
        for other in range(1, SPLITS):
            acc += gl.load(at + other * (R * C), cache_modifier=".cg")
    return acc, last


@gluon.constexpr_function
def _stored(shape, tokens, num_warps):
    """How threads hold a part of sums to store it, with eight rows of the weights side by side; `tokens` is their
    axis."""
    below = 2 if shape[1 - tokens] >= 128 else 1
    if tokens == 1:
        return gl.BlockedLayout([8, 1], [8, 4], [below, num_warps // below], [0, 1])
    return gl.BlockedLayout([1, 8], [4, 8], [num_warps // below, below], [1, 0])


@gluon.jit
def ended(acc, ready, shares, finished, tile, split, SPLITS: gl.constexpr, STAGES: gl.constexpr):
    """A tile's sums after the last product, and whether they are whole; the ring's barriers are given back."""
    acc = warpgroup_mma_wait(0, [acc])
    release(ready, STAGES)
    last = True
    if SPLITS > 1:
        acc, last = together(acc, shares, finished, tile, split, SPLITS)
    return acc, last


@gluon.jit
def places(row, token, m, n, R: gl.constexpr, C: gl.constexpr, TOKENS: gl.constexpr, LAYOUT: gl.constexpr):
    """R rows and C tokens from `row` and `token` on, along their axes, of which TOKENS is the tokens'; and which of
    them there are."""
    rows = (row + gl.arange(0, R, gl.SliceLayout(TOKENS, LAYOUT))).expand_dims(TOKENS)
    tokens = (token + gl.arange(0, C, gl.SliceLayout(1 - TOKENS, LAYOUT))).expand_dims(1 - TOKENS)
    return rows, tokens, (rows < n) & (tokens < m)


@gluon.jit
def finish(
    acc, scale_a, scale_b, zero_a, sums, bias, residual, y, row, token, m, n, y_stride, residual_stride,
    A_STEP: gl.constexpr, B_STEP: gl.constexpr, ZERO_STEP: gl.constexpr, FACTOR: gl.constexpr, ZERO: gl.constexpr,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, RESIDUAL: gl.constexpr, TOKENS: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """`epilogue.finish` of sums from `row` and `token` on, [rows, tokens] or, TOKENS 0, [tokens, rows]."""
    ROWS: gl.constexpr = 1 - TOKENS
    tokens = token + gl.arange(0, acc.shape[TOKENS], gl.SliceLayout(ROWS, acc.type.layout))
    rows = row + gl.arange(0, acc.shape[ROWS], gl.SliceLayout(TOKENS, acc.type.layout))
    if ZERO:
        zero = gl.load(zero_a + tokens * ZERO_STEP, mask=tokens < m, other=0)
        acc -= zero.expand_dims(ROWS) * gl.load(sums + rows, mask=rows < n, other=0).expand_dims(TOKENS)
    value = acc.to(gl.float32)
    if A_STEP is not None:
        of_token = gl.load(scale_a + tokens * A_STEP, mask=tokens < m, other=0.0)
        if ZERO:
            of_token = gl.where((zero >= -128) & (zero <= 127), of_token, float("nan"))
        of_row = gl.load(scale_b + rows * B_STEP, mask=rows < n, other=0.0) * FACTOR
        value = value * of_token.expand_dims(ROWS) * of_row.expand_dims(TOKENS)
    if BIAS:
        value += gl.load(bias + rows, mask=rows < n, other=0.0).to(gl.float32).expand_dims(TOKENS)
    value = activated(value, ACTIVATION)
    if not RESIDUAL:
        value = value.to(y.dtype.element_ty)
    out: gl.constexpr = _stored(acc.shape, TOKENS, num_warps)
    value = gl.convert_layout(value, out)
    rows, tokens, inside = places(row, token, m, n, acc.shape[ROWS], acc.shape[TOKENS], TOKENS, out)
    if RESIDUAL:
        at = residual + tokens.to(gl.int64) * residual_stride + rows
        value += gl.load(at, mask=inside, other=0.0).to(gl.float32)
    gl.store(y + tokens.to(gl.int64) * y_stride + rows, value.to(y.dtype.element_ty), mask=inside)


@gluon.jit
def _finish(
    acc, scale_a, scale_b, zero_a, sums, bias, residual, y, row, token, m, n, y_stride, residual_stride,
    A_STEP: gl.constexpr, B_STEP: gl.constexpr, ZERO_STEP: gl.constexpr, FACTOR: gl.constexpr, ZERO: gl.constexpr,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, RESIDUAL: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """`finish` of sums [rows, tokens]; of many tokens half by half, as all there is to a whole tile does not fit the
    registers."""
    C: gl.constexpr = acc.shape[1]
    PIECES: gl.constexpr = 2 if C >= 256 else 1
    if PIECES == 2:
        parts = in_two(acc)
    else:
        parts = (acc,)
    for i in gl.static_range(PIECES):
        finish(
            parts[i], scale_a, scale_b, zero_a, sums, bias, residual, y, row, token + i * (C // PIECES), m, n,
            y_stride, residual_stride, A_STEP, B_STEP, ZERO_STEP, FACTOR, ZERO, BIAS, ACTIVATION, RESIDUAL, 1,
            num_warps,
        )  # fmt: skip


@gluon.jit
def int8_hopper_kernel(
    a, b, scale_a, scale_b, zero_a, sums, bias, residual, y, shares, finished,
    m, n, k, y_stride, residual_stride,
    A_STEP: gl.constexpr, B_STEP: gl.constexpr, ZERO_STEP: gl.constexpr, ZERO: gl.constexpr, BIAS: gl.constexpr,
    ACTIVATION: gl.constexpr, RESIDUAL: gl.constexpr, GROUP: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """A program a tile of rows of b by tokens, as the blocks of the descriptors a and b say, and a share of K."""
    BM: gl.constexpr = a.block_type.shape[0]
    BN: gl.constexpr = b.block_type.shape[0]
    STEP: gl.constexpr = b.block_type.shape[1]
    tile, split, row, token, first, end = share_of(gl.program_id(0), m, n, k, BM, BN, STEP, GROUP, SPLITS)
    left, right, ready = _ring(b, a, STAGES, 1)
    for i in gl.static_range(STAGES - 1):
        _send_for(b, a, left, right, ready, i, first + i, row, token, first + i < end, STAGES, 1)
    acc = gl.zeros([BN, BM], gl.int32, units_of(BM, num_warps))
    for i in range(first, end):
        stage = i - first
        slot = stage % STAGES
        mbarrier.wait(ready.index(slot), (stage // STAGES) & 1)
        acc = warpgroup_mma(left.index(slot), right.index(slot).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, [acc])
        ahead = i + STAGES - 1
        _send_for(b, a, left, right, ready, ahead - first, ahead, row, token, ahead < end, STAGES, 1)
    acc, last = ended(acc, ready, shares, finished, tile, split, SPLITS, STAGES)
    if last:
        _finish(
            acc, scale_a, scale_b, zero_a, sums, bias, residual, y, row, token, m, n, y_stride, residual_stride,
            A_STEP, B_STEP, ZERO_STEP, 1.0, ZERO, BIAS, ACTIVATION, RESIDUAL, num_warps,
        )  # fmt: skip


@gluon.jit
def w4a8_hopper_kernel(
    a, packed, scale_a, scale_b, group_scale, bias, residual, y, shares, finished,
    m, n, k, group_row, group_step, y_stride, residual_stride,
    A_STEP: gl.constexpr, B_STEP: gl.constexpr, GROUPED: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
    RESIDUAL: gl.constexpr, GROUP: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """A program a tile of rows of W by tokens, as the blocks of the descriptors packed and a say, and a share of K.

    A stage of the ring has 128 or 256 values of K, tiles of tokens 128. A turn of the loop is always 256 values, two
    parts: the matrix units read a part's codes from the registers where they were unpacked, so the next part needs
    others, and the one after it may take them again once the first is done. What lies beyond K is zero.
    """
    BM: gl.constexpr = a.block_type.shape[0]
    BN: gl.constexpr = packed.block_type.shape[0]
    TILES: gl.constexpr = packed.block_type.shape[1] // HALF  # of tokens, a stage
    SHARE: gl.constexpr = 2 // TILES  # stages a turn
    tile, split, row, token, first, end = share_of(gl.program_id(0), m, n, k, BM, BN, 4 * HALF, GROUP, SPLITS)
    start, stop = first * SHARE, end * SHARE
    left, right, ready = _ring(packed, a, STAGES, TILES)
    for i in gl.static_range(STAGES - 1):
        _send_for(packed, a, left, right, ready, i, start + i, row, token, start + i < stop, STAGES, TILES)
    units: gl.constexpr = units_of(BM, num_warps)
    factor: gl.constexpr = gl.DotOperandLayout(0, units, 4)
    acc = gl.zeros([BN, BM], gl.int32, units)
    down = gl.arange(0, BN, gl.SliceLayout(1, factor))
    groups = group_scale + (row + down).to(gl.int64) * group_row
    there = down < n - row
    if GROUPED:
        one, other = _scales(groups, there, first * 2, group_step, k // (2 * HALF))
    for turn in range(first, end):
        if GROUPED:
            next_one, next_other = _scales(groups, there, turn * 2 + 2, group_step, k // (2 * HALF))
        for part in gl.static_range(2):
            step = turn * SHARE + part // TILES
            stage = step - start
            slot = stage % STAGES
            if part % TILES == 0:
                mbarrier.wait(ready.index(slot), (stage // STAGES) & 1)
            codes = left.index(slot).slice(part % TILES * HALF, HALF, 1).load(factor)
            if GROUPED:
                both, codes = gl.broadcast(twice(other if part else one).expand_dims(1), codes)
                low, high = folded_twice(codes, both)
            else:
                low, high = unpacked(codes, "ptx")
            tokens = right.index(slot * TILES + part % TILES)
            acc = warpgroup_mma(low, tokens.slice(0, HALF, 1).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma(high, tokens.slice(HALF, HALF, 1).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(2, [acc])
            if part % TILES == TILES - 1:
                step += STAGES - 1
                _send_for(packed, a, left, right, ready, step - start, step, row, token, step < stop, STAGES, TILES)
        if GROUPED:
            one, other = next_one, next_other
    acc, last = ended(acc, ready, shares, finished, tile, split, SPLITS, STAGES)
    if last:
        _finish(
            acc, scale_a, scale_b, scale_a, scale_a, bias, residual, y, row, token, m, n, y_stride, residual_stride,
            A_STEP, B_STEP, 0, 1.0 if GROUPED else 0.0625, False, BIAS, ACTIVATION, RESIDUAL, num_warps,
        )  # fmt: skip
