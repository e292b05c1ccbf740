# mypy: ignore-errors
"""`hopper_kernel` with all steps of all tiles divided evenly, one program to a multiprocessor.

Algorithm: stream-K (arXiv 2301.03598; Marlin's stripes are the same idea), warp-specialized: a producer warp fills the
    ring without end, and two consumer warp groups multiply half of a tile's rows each.
Tile:
    tiles    |  0  |  1  |  2  |  3  |  4  |      each of N steps of K
    programs |   0   |   1   |   2   |   3   |    each of as many steps as any other
Bound: instructions for decoding and the tensor cores, as `hopper_kernel`. Without an even division the fullest
    multiprocessor has 3 to 38% more than the mean, counted for W4A8 (docs/log.md, "Stripes for the W4A8 product").
Tried: docs/log.md: "What many tokens of a product wait for"; "Stripes for the W4A8 product".
Twin: `octavo.backends.reference.ops.mul_mat`

A program begins and ends within tiles, and each tile that several programs share is summed by the last of them to
finish, in the order of the programs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.compile.gluon_names import barrier
from octavo.backends.gpu.matmul.w4a16.hopper_kernel import (
    GROUP_M,
    TILE,
    Sources,
    W4A16Ring,
    memory_of,
    multiply_tile,
    send_tokens,
    send_weights,
)
from octavo.backends.gpu.matmul.w8a8.epilogue import tile_of
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers, column_halves, rows_and_tokens

REGISTERS = gl.constexpr(192)  # of a thread that multiplies
OTHERS = gl.constexpr(120)  # of one that copies: with fewer ptxas has matrix instructions wait for each other


class StepRange(NamedTuple):
    """Steps `start` to `stop` of all tiles' are those of a program; a tile has `steps`, all have `total`."""

    start: Any
    stop: Any
    steps: Any
    total: Any
    program: Any
    programs: Any


@gluon.jit
def step_range(steps, tiles, program, programs):
    """A program's steps, one at least, of as many tiles."""
    total = tiles * steps
    return StepRange(program * total // programs, (program + 1) * total // programs, steps, total, program, programs)


@gluon.jit
def _own_steps(size, BM: gl.constexpr, BN: gl.constexpr):
    """This program's steps."""
    tiles = gl.cdiv(size.m, BM) * gl.cdiv(size.n, BN)
    return step_range(size.k // TILE, tiles, gl.program_id(0), gl.num_programs(0))


@gluon.jit
def _place_of(tile, size, BM: gl.constexpr, BN: gl.constexpr):
    """The first row and the first token of a tile."""
    row, token = tile_of(tile, gl.cdiv(size.n, BN), gl.cdiv(size.m, BM), GROUP_M)
    return row * BN, token * BM


@gluon.jit
def _producer(sources, ring, free, size, shape: gl.constexpr, PDL: gl.constexpr):
    """Fill the ring, a stage as soon as all groups have read it. What is read of weights does not wait for x."""
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    STAGES: gl.constexpr = shape.stages
    work = _own_steps(size, BM, BN)
    early = gl.minimum(work.stop - work.start, STAGES)
    for i in range(early):
        at = work.start + i
        row, _ = _place_of(at // work.steps, size, BM, BN)
        send_weights(sources, ring, i, at % work.steps, row, True)
    if PDL:
        gdc_wait()
    for i in range(work.stop - work.start):
        slot = i % STAGES
        at = work.start + i
        row, token = _place_of(at // work.steps, size, BM, BN)
        if i >= early:
            mbarrier.wait(free.index(slot), ((i // STAGES) & 1) ^ 1)
            send_weights(sources, ring, slot, at % work.steps, row, True)
        send_tokens(sources.x, ring, slot, at % work.steps, token, True)


@gluon.jit
def _program_of(step, work):
    """The program that has a step."""
    return ((step + 1) * work.programs - 1) // work.total


@gluon.jit
def whole_tile(acc, splits, work, tile, first, WHICH: gl.constexpr, PARTS: gl.constexpr):
    """A tile's sums of all programs that have a part of it, and whether this is the last of them.

    A program keeps two parts at the most: of the tile that it begins within, and of the tile that it ends within. Its
    rows are divided in PARTS, of which acc has the one numbered WHICH.
    """
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    SIZE: gl.constexpr = PARTS * R * C
    begin = _program_of(tile * work.steps, work)
    end = _program_of((tile + 1) * work.steps - 1, work)
    last = True
    if end > begin:
        down = gl.arange(0, R, gl.SliceLayout(1, acc.type.layout))[:, None]
        across = gl.arange(0, C, gl.SliceLayout(0, acc.type.layout))[None, :]
        at = splits.partial + WHICH * R * C + down * C + across
        mine = (2 * work.program + (first == 0)).to(gl.int64)
        gl.store(at + mine * SIZE, acc)  # [BLOCK_N / 2, BLOCK_M]
        barrier()
        counter = splits.counter + tile * PARTS + WHICH
        last = gl.atomic_add(counter, 1, sem="acq_rel") == end - begin
        if last:
            gl.store(counter, 0)
            acc = gl.load(at + (2 * begin + 1).to(gl.int64) * SIZE, cache_modifier=".cg")
            for other in range(begin + 1, end + 1):
                acc += gl.load(at + (2 * other).to(gl.int64) * SIZE, cache_modifier=".cg")  # [BLOCK_N / 2, BLOCK_M]
    return acc, last


@gluon.jit
def _store(acc, terms, y, row, token, size):
    """y f32 [tokens, rows] = acc [rows, tokens] + terms, straight from where the tensor cores left them."""
    R: gl.constexpr = acc.shape[0]
    C: gl.constexpr = acc.shape[1]
    LAYOUT: gl.constexpr = acc.type.layout
    rows, tokens, inside = rows_and_tokens(row, token, size.m, size.n, R, C, 1, LAYOUT)
    if y.factors is not None:
        acc *= gl.load(y.factors + rows, mask=rows < size.n, other=0.0)
    for i in gl.static_range(len(terms)):
        acc += gl.load(terms[i].data + tokens.to(gl.int64) * terms[i].stride + rows, mask=inside, other=0.0)
    gl.store(y.data + tokens.to(gl.int64) * y.stride + rows, acc, mask=inside)


@gluon.jit
def store_tile(acc, terms, y, row, token, size):
    """`_store`, of many tokens in parts of 32: more addresses at once do not fit the registers."""
    C: gl.constexpr = acc.shape[1]
    if C > 32:
        low, high = column_halves(acc)
        store_tile(low, terms, y, row, token, size)
        store_tile(high, terms, y, row, token + C // 2, size)
    else:
        _store(acc, terms, y, row, token, size)


@gluon.jit
def _consumer(
    ring, free, terms, y, splits, size, layout: gl.constexpr, shape: gl.constexpr, PDL: gl.constexpr,
    WHICH: gl.constexpr,
):
    """Multiply and finish the first (WHICH 0) or the second half of rows of each of a program's tiles."""
    BM: gl.constexpr = shape.block_m
    BN: gl.constexpr = shape.block_n
    ROWS: gl.constexpr = BN // 2
    STAGES: gl.constexpr = shape.stages
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    work = _own_steps(size, BM, BN)
    if PDL:
        gdc_wait()
    count = 0
    for tile in range(work.start // work.steps, gl.cdiv(work.stop, work.steps)):
        first = gl.maximum(work.start - tile * work.steps, 0)
        steps = gl.minimum(work.stop - tile * work.steps, work.steps) - first
        gl.assume(steps > 0)
        acc = gl.zeros([ROWS, BM], gl.float32, mma)
        for i in range(steps):
            slot = (count + i) % STAGES
            mbarrier.wait(ring.ready.index(slot), ((count + i) // STAGES) & 1)
            acc = multiply_tile(acc, ring, slot, ROWS, WHICH * ROWS, layout, mma)
            barrier()  # all warps have read the codes of the stage before, and the tensor cores its x
            mbarrier.arrive(free.index(gl.maximum(count + i - 1, 0) % STAGES), pred=i > 0)
        acc = warpgroup_mma_wait(0, [acc])
        barrier()
        mbarrier.arrive(free.index((count + steps - 1) % STAGES))
        count += steps
        row, token = _place_of(tile, size, BM, BN)
        acc, last = whole_tile(acc, splits, work, tile, first, WHICH, 2)
        if last:
            store_tile(acc, terms, y, row + WHICH * ROWS, token, size)


@gluon.jit
def w4a16_streamk_kernel(
    x, codes, codes2, scales, terms, y, splits, size, layout: gl.constexpr, shape: gl.constexpr, PDL: gl.constexpr
):
    """As many programs as run at once; arguments are those of `w4a16_hopper_kernel`."""
    if PDL:
        gdc_launch_dependents()
    STAGES: gl.constexpr = shape.stages
    sources = Sources(codes, codes2, scales, x)
    ring = W4A16Ring(
        memory_of(codes, STAGES), memory_of(codes2, STAGES), memory_of(scales, STAGES), memory_of(x, STAGES * 2),
        barriers(STAGES),
    )
    free = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (_consumer, (ring, free, terms, y, splits, size, layout, shape, PDL, 0)),
            (_consumer, (ring, free, terms, y, splits, size, layout, shape, PDL, 1)),
            (_producer, (sources, ring, free, size, shape, PDL)),
        ],
        [4, 1],
        [REGISTERS, OTHERS],
    )
