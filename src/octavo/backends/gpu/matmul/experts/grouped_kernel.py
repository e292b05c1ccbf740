# mypy: ignore-errors
"""Products of a few tokens with experts for compute capability 9.0, each expert's weights read once, in Gluon.

Algorithm: stream-K (arXiv 2301.03598) over a grouped GEMM: the tiles of all experts in use are one sequence of steps,
    which is divided evenly; a step is that of `w4a16.streamk_multicta_kernel`.
Tile:
    pairs, sorted    | expert 0 | expert 1       |  2  | ...      tiles of 8 to 32 pairs of one expert
    items            | rows 0.. | rows 64.. | ... | rows 0.. | ...      a tile's rows of weights, 64 or 128 an item
    CTAs             |     0     |     1     |     2     | ...    equal shares of all items' steps of K, 256 values each
    ring             the next item's codes | scales | x^T are on their way while this one's are multiplied
    warps            four, which fill the ring, too, or a fifth that does
    gated            an item's rows are half of gate's, half of up's; their products are gated where they are
Bound: bytes of the experts' weights: of 128, 768 x 2048 in Q4_K, 16 tokens by 8 of them 2,830 GB/s, of 32, 2880 x 2880
    in MXFP4, 8 and 32 tokens by 4 of them 2,780 and 3,000 on an H200 (bench/results/gpu-experts-2026-11-30.json).
Tried: docs/log.md: "A matvec for each pair is hard to beat with few of them".
Twin: `octavo.backends.reference.ops.mul_mat_id`

`sort_kernel` lists the tiles, without gaps, which is known to have ended when this kernel begins: `gather_kernel`, in
between, lets others begin only after it has waited for that. So the first weights are asked for before the rows of x
are waited for. The last CTA to finish a shared item adds the partial sums of all, in the order of the CTAs.
A warp that only fills the ring spares the others 70 to 90 of 400 to 660 instructions a step, and half of the barriers,
but takes the registers of four.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.compile.gluon_names import barrier
from octavo.backends.gpu.matmul.experts.hopper_kernel import memory_of_halves, send_rows, store_gated
from octavo.backends.gpu.matmul.w4a16.hopper_kernel import TILE, Sources, W4A16Ring, memory_of
from octavo.backends.gpu.matmul.w4a16.streamk_kernel import StepRange, whole_tile
from octavo.backends.gpu.matmul.w4a16.streamk_multicta_kernel import multiply_stage, send_stage_tokens
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers

OTHERS = gl.constexpr(88)  # registers of a thread of a warp that fills the ring, and of its three neighbours
EVEN = gl.constexpr(16)  # the largest share of whole items is at most one part in so many larger than the mean
LEAST_STEPS = gl.constexpr(2)  # of a program: with fewer there are more partial sums than work


@gluon.jit
def share_of(items, steps, program, programs, LEAST: gl.constexpr):
    """The steps that a program has of those of all items, LEAST or nearly as many; none if it is one too many.

    Whole items where that makes nobody's share much larger than the others': there is nothing to add up then.
    """
    total = items * steps
    if programs * LEAST > total:
        programs = (total + LEAST - 1) // LEAST
    start, stop = program * total // programs, (program + 1) * total // programs
    if (items + programs - 1) // programs * programs * EVEN <= items * (EVEN + 1):
        start, stop = program * items // programs * steps, (program + 1) * items // programs * steps
    if program >= programs:
        start, stop = total, total
    return StepRange(start, stop, steps, total, program, programs)


@gluon.jit
def step_after(tile, row, step, steps, rows, BN: gl.constexpr):
    """The tile, the row and the step that follow: steps of K, then rows below n, `rows` rounded up to whole items, then
    tiles."""
    step += 1
    if step == steps:
        step = 0
        row += BN
        if row >= rows:
            row = 0
            tile += 1
    return tile, row, step


@gluon.jit
def _tile_at(tiles, tile):
    """The expert and the first pair of a listed tile; anything after the last, for which there is memory."""
    at = tiles + 3 * (1 + tile)
    return gl.load(at), gl.load(at + 1)


@gluon.jit
def _next(at, here, coming, tiles, steps, rows, BN: gl.constexpr):
    """The place after `at` (tile, row, step), its tile's `_tile_at` and, asked for an item ahead, the next tile's."""
    tile, row, step = step_after(at[0], at[1], at[2], steps, rows, BN)
    expert, first = here
    next_expert, next_first = coming
    if tile != at[0]:
        expert, first = next_expert, next_first
        next_expert, next_first = _tile_at(tiles, tile + 1)
    return (tile, row, step), (expert, first), (next_expert, next_first)


@gluon.jit
def _store(acc, y, order, first, end, row, expert, n):
    """Rows order[first] to order[end - 1] of y [pairs, n], from `row` on = acc [rows, pairs]; factors are of all
    experts' rows of weights."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    LAYOUT: gl.constexpr = acc.type.layout
    rows = row + gl.arange(0, R, gl.SliceLayout(1, LAYOUT))
    place = first + gl.arange(0, C, gl.SliceLayout(0, LAYOUT))
    pair = gl.load(order + place, mask=place < end, other=0).expand_dims(0)
    if y.factors is not None:
        acc *= gl.load(y.factors + expert * n + rows, mask=rows < n, other=0.0).expand_dims(1)
    rows = rows.expand_dims(1)
    gl.store(y.data + pair.to(gl.int64) * y.stride + rows, acc, mask=(rows < n) & (place < end).expand_dims(0))


@gluon.jit
def _share(tiles, n, k, shape: gl.constexpr):
    """This program's steps, and how many items a tile of pairs has."""
    across = gl.cdiv(n, shape.rows)
    steps = gl.cdiv(k, TILE * shape.depth)
    return share_of(gl.load(tiles) * across, steps, gl.program_id(0), gl.num_programs(0), LEAST_STEPS), across


@gluon.jit
def _begin(sources, ring, tiles, n, k, STAGES: gl.constexpr, shape: gl.constexpr, PDL: gl.constexpr):
    """Have the first STAGES steps copied, weights before x is waited for. Returns the place after these (`_next`) and
    how many steps are left."""
    work, across = _share(tiles, n, k, shape)
    rows = across * shape.rows
    begin = work.start // work.steps
    at = (begin // across, begin % across * shape.rows, work.start - begin * work.steps)
    here, coming = _tile_at(tiles, at[0]), _tile_at(tiles, at[0] + 1)
    left = work.stop - work.start
    tokens = ()
    for i in gl.static_range(STAGES):
        send_rows(sources, ring, i, at[2], at[1], here[0], n, i < left, 1)
        tokens = tokens + ((at[2], here[1]),)  # noqa: RUF005
        at, here, coming = _next(at, here, coming, tiles, work.steps, rows, shape.rows)
    if PDL:
        gdc_wait()
    for i in gl.static_range(STAGES):
        send_stage_tokens(sources, ring, i, tokens[i][0], i < left, tokens[i][1])
    return at, here, coming, left - STAGES


@gluon.jit
def _send(sources, ring, slot, at, here, n, there):
    """Have a step copied."""
    send_rows(sources, ring, slot, at[2], at[1], here[0], n, there, 1)
    send_stage_tokens(sources, ring, slot, at[2], there, here[1])


@gluon.jit
def _producer(sources, ring, free, tiles, n, k, shape: gl.constexpr, PDL: gl.constexpr):
    """Fill the ring, a stage as soon as it has been read."""
    STAGES: gl.constexpr = shape.stages
    work, across = _share(tiles, n, k, shape)
    rows = across * shape.rows
    at, here, coming, left = _begin(sources, ring, tiles, n, k, STAGES, shape, PDL)
    slot, phase = 0, 0
    for _ in range(left):
        mbarrier.wait(free.index(slot), phase)
        _send(sources, ring, slot, at, here, n, True)
        at, here, coming = _next(at, here, coming, tiles, work.steps, rows, shape.rows)
        phase = gl.where(slot == STAGES - 1, 1 - phase, phase)
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)


@gluon.jit
def _products(
    sources, ring, free, order, tiles, y, gate, biases, numbers, splits, n, k, layout: gl.constexpr,
    shape: gl.constexpr, KIND: gl.constexpr, PDL: gl.constexpr,
):
    """Multiply this program's steps, and store the items that it finishes. Without `free`, at whose barriers it tells
    the producer what it has read, it fills the ring itself."""
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    work, across = _share(tiles, n, k, shape)
    rows = across * shape.rows
    if free is None:
        at, here, coming, left = _begin(sources, ring, tiles, n, k, STAGES - 1, shape, PDL)
    elif PDL:
        gdc_wait()
    WGMMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [shape.warps, 1], [16, shape.block_m, 16])
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [shape.warps, 1], [16, 8]) if shape.small else WGMMA
    slot, phase, before = 0, 0, STAGES - 1
    for item in range(work.start // work.steps, gl.cdiv(work.stop, work.steps)):
        first_step = gl.maximum(work.start - item * work.steps, 0)
        own = gl.minimum(work.stop - item * work.steps, work.steps) - first_step
        gl.assume(own > 0)
        listed = tiles + 3 * (1 + item // across)
        expert, first, end = gl.load(listed), gl.load(listed + 1), gl.load(listed + 2)
        acc = gl.zeros([BN, shape.block_m], gl.float32, mma)
        for i in range(own):
            mbarrier.wait(ring.ready.index(slot), phase)
            acc = multiply_stage(acc, ring, slot, layout, shape.depth, mma)
            if free is None:
                _send(sources, ring, before, at, here, n, left > 0)
                at, here, coming = _next(at, here, coming, tiles, work.steps, rows, shape.rows)
                left -= 1
            else:
                barrier()  # all warps have read the codes of the stage before, and the tensor cores its x
                mbarrier.arrive(free.index(before), pred=i > 0)
            before = slot
            phase = gl.where(slot == STAGES - 1, 1 - phase, phase)
            slot = gl.where(slot == STAGES - 1, 0, slot + 1)
        if not shape.small:
            acc = warpgroup_mma_wait(0, [acc])
        if free is not None:
            barrier()
            mbarrier.arrive(free.index(before))
        last = True
        if own < work.steps:
            acc, last = whole_tile(acc, splits, work, item, first_step, 0, 1)
        if last:
            if gate is not None:
                row = item % across * shape.rows
                store_gated(acc, gate, biases, numbers, y.factors, first, end, row, expert, n, KIND, 4)
            else:
                _store(acc, y, order, first, end, item % across * BN, expert, n)


@gluon.jit
def experts_grouped_kernel(
    x, codes, codes2, scales, order, tiles, y, gate, biases, numbers, splits, n, k, layout: gl.constexpr,
    shape: gl.constexpr, KIND: gl.constexpr, PDL: gl.constexpr,
):
    """Row order[i] of y f32 [pairs, n] is row i of x by its expert's weights. As many programs as fit the card.

    With `gate`, a Matrix, an expert has n rows of gate and n of up, which codes, codes2 and scales tell
    apart by a dimension more, and KIND of both, to which `biases` and which takes `numbers`, is left there, sorted.
    x, codes, codes2 and scales are `Sources`; x is float16 [pairs, k], sorted, as `reordered` gives it, and the rows of
    weights are those of all experts, n of each. y is `Results`; tiles is what `sort_kernel` lists. splits is memory for
    partial sums, and a counter for each item.
    """
    if PDL:
        gdc_launch_dependents()
    STAGES: gl.constexpr = shape.stages
    sources = Sources(codes, codes2, scales, x)
    ring = W4A16Ring(
        memory_of_halves(codes, STAGES, False), memory_of_halves(codes2, STAGES, False),
        memory_of_halves(scales, STAGES, True), memory_of(x, STAGES), barriers(STAGES),
    )
    if shape.producer:
        free = barriers(STAGES)
        gl.warp_specialize(
            [
                (_products, (
                    None, ring, free, order, tiles, y, gate, biases, numbers, splits, n, k, layout, shape, KIND, PDL,
                )),
                (_producer, (sources, ring, free, tiles, n, k, shape, PDL)),
            ],
            [1],
            [OTHERS],
        )
    else:
        _products(
            sources, ring, None, order, tiles, y, gate, biases, numbers, splits, n, k, layout, shape, KIND, PDL
        )
