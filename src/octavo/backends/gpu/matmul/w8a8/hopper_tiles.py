# mypy: ignore-errors
"""What kernels in Gluon for compute capability 9.0 share: which tile, barriers of a ring, split-K, and the epilogue.

The epilogue is that of `epilogue`, whose arguments it takes, for sums that lie as the tensor cores leave them.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from octavo.backends.gpu.compile.gluon_names import barrier
from octavo.backends.gpu.matmul.w8a8.epilogue import activated, steps_of, tile_of


@gluon.jit
def tile_scheduler(
    item, m, n, k, BM: gl.constexpr, BN: gl.constexpr, STEP: gl.constexpr, GROUP: gl.constexpr, SPLIT_K: gl.constexpr
):
    """Returns (tile, split, row, token, first_step, end_step) of a program's item.

    There is one step at least, beyond K if need be, where all is zero: of a loop that may run no times the compiler
    makes one whose matrix instructions wait for each other.
    """
    tiles = gl.cdiv(m, BM) * gl.cdiv(n, BN)
    tile, split = item % tiles, item // tiles
    row, token = tile_of(tile, gl.cdiv(n, BN), gl.cdiv(m, BM), GROUP)
    first, end = steps_of(split, k, STEP, SPLIT_K)
    end = gl.maximum(end, first + 1)
    gl.assume(end > first)
    return tile, split, row * BN, token * BM, first, end


@gluon.jit
def barriers(STAGES: gl.constexpr, COUNT: gl.constexpr = 1):
    """A barrier for each stage of a ring, at which COUNT have to arrive."""
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
def column_halves(acc):
    """The left and the right half of columns."""
    return acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def sum_splits(acc, split_k, tile, split, SPLIT_K: gl.constexpr):
    """`epilogue.sum_splits`."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    down = gl.arange(0, R, gl.SliceLayout(1, acc.type.layout))[:, None]
    across = gl.arange(0, C, gl.SliceLayout(0, acc.type.layout))[None, :]
    at = split_k.partial + tile.to(gl.int64) * (SPLIT_K * R * C) + down * C + across
    gl.store(at + split * (R * C), acc)  # [R, C]
    barrier()
    last = gl.atomic_add(split_k.counter + tile, 1, sem="acq_rel") == SPLIT_K - 1
    if last:
        gl.store(split_k.counter + tile, 0)
        acc = gl.load(at, cache_modifier=".cg")
        for other in range(1, SPLIT_K):
            acc += gl.load(at + other * (R * C), cache_modifier=".cg")  # [R, C]
    return acc, last


@gluon.jit
def whole_sums(acc, ready, split_k, tile, split, SPLIT_K: gl.constexpr, STAGES: gl.constexpr):
    """A tile's sums after the last product, and whether they are whole; the ring's barriers are given back."""
    acc = warpgroup_mma_wait(0, [acc])
    release(ready, STAGES)
    last = True
    if SPLIT_K > 1:
        acc, last = sum_splits(acc, split_k, tile, split, SPLIT_K)
    return acc, last


@gluon.constexpr_function
def _layout_to_store(shape, tokens, num_warps):
    """How threads hold a part of sums to store it: eight rows of the weights side by side; `tokens` is their axis."""
    below = 2 if shape[1 - tokens] >= 128 else 1
    if tokens == 1:
        return gl.BlockedLayout([8, 1], [8, 4], [below, num_warps // below], [0, 1])
    return gl.BlockedLayout([1, 8], [4, 8], [num_warps // below, below], [1, 0])


@gluon.jit
def rows_and_tokens(row, token, m, n, R: gl.constexpr, C: gl.constexpr, TOKENS: gl.constexpr, LAYOUT: gl.constexpr):
    """R rows from `row` on and C tokens from `token` on, each along its axis, and which of them there are.

    TOKENS is the axis of the tokens.
    """
    rows = (row + gl.arange(0, R, gl.SliceLayout(TOKENS, LAYOUT))).expand_dims(TOKENS)
    tokens = (token + gl.arange(0, C, gl.SliceLayout(1 - TOKENS, LAYOUT))).expand_dims(1 - TOKENS)
    return rows, tokens, (rows < n) & (tokens < m)


@gluon.jit
def finish(
    acc, end, size, row, token, config: gl.constexpr, TOKENS: gl.constexpr, num_warps: gl.constexpr,
    IN_PLACE: gl.constexpr = False,
):
    """`epilogue.finish` of sums from `row` and `token` on, [rows, tokens] or, if TOKENS is 0, [tokens, rows]; IN_PLACE
    they are stored by the threads that have them, and not moved through shared memory first."""
    ROWS: gl.constexpr = 1 - TOKENS
    tokens = token + gl.arange(0, acc.shape[TOKENS], gl.SliceLayout(ROWS, acc.type.layout))
    rows = row + gl.arange(0, acc.shape[ROWS], gl.SliceLayout(TOKENS, acc.type.layout))
    here, there = tokens < size.m, rows < size.n
    if end.zero_a is not None:
        zero = gl.load(end.zero_a + tokens * config.step_zero, mask=here, other=0)  # [tokens]
        acc -= zero.expand_dims(ROWS) * gl.load(end.sums_b + rows, mask=there, other=0).expand_dims(TOKENS)
    value = acc.to(gl.float32)
    if end.scale_a is not None:
        of_token = gl.load(end.scale_a + tokens * config.step_a, mask=here, other=0.0)  # [tokens]
        if end.zero_a is not None:
            of_token = gl.where((zero >= -128) & (zero <= 127), of_token, float("nan"))
        of_row = gl.load(end.scale_b + rows * config.step_b, mask=there, other=0.0) * config.factor  # [rows]
        value = value * of_token.expand_dims(ROWS) * of_row.expand_dims(TOKENS)
    if end.bias is not None:
        value += gl.load(end.bias + rows, mask=there, other=0.0).to(gl.float32).expand_dims(TOKENS)
    ACTIVATION: gl.constexpr = config.activation
    value = activated(value, ACTIVATION)
    if end.residual is None:
        value = value.to(end.y.data.dtype.element_ty)
    out: gl.constexpr = value.type.layout if IN_PLACE else _layout_to_store(acc.shape, TOKENS, num_warps)
    value = gl.convert_layout(value, out)
    rows, tokens, inside = rows_and_tokens(row, token, size.m, size.n, acc.shape[ROWS], acc.shape[TOKENS], TOKENS, out)
    if end.residual is not None:
        at = end.residual.data + tokens.to(gl.int64) * end.residual.stride + rows
        value += gl.load(at, mask=inside, other=0.0).to(gl.float32)
    gl.store(end.y.data + tokens.to(gl.int64) * end.y.stride + rows, value.to(end.y.data.dtype.element_ty), mask=inside)
