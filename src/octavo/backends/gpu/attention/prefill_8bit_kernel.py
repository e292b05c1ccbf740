# mypy: ignore-errors
"""Prefill attention by products of 8-bit numbers for compute capability 9.0, in Gluon.

Algorithm: FlashAttention-3's FP8 plan (arXiv 2407.08608), with scales of blocks and keys less a mean, as SageAttention
    smooths them (arXiv 2410.02367).
Tile:
    producer warp      K V | K V | K V | ...           TMA: codes of blocks of 128 positions, V^T for K-major products
    consumer group 0   S=QK | softmax, e4m3 weights | S=QK PV | ...    64 queries
    consumer group 1         S=QK | softmax, e4m3 weights | S=QK PV    64 queries: they take turns at the tensor cores
Bound: instructions: of 2,570 cycles for 128 queries and keys the tensor cores work 39%, and 42% issue an instruction
    (docs/log.md, "Attention by products of 8 bits waits, whatever it does less"). 759 TFLOPS with int8 and 772 with fp8
    at 8,192 tokens on an H200, codes included (bench/results/gpu-prefill-h200-2026-11-26.json).
Tried: docs/log.md: "Attention by products of 8 bits waits, whatever it does less"; "Two small programs on a
    multiprocessor do not hide what a tile of attention costs at its ends"; "Weights of a product under way that the
    next weights may be copied to make products wait for each other".
Twin: `octavo.backends.reference.ops.attention`

The ring, its waits and releases, the tile scheduler and what queries see are those of `prefill_hopper_kernel`.
Producers differ in what they copy, the soft-max in what is scaled. A query's codes have a scale of their own. Weights
are e4m3 numbers up to 2^8: their exponents have a range of 2^17, and values of smaller scale take from it. Tensor cores
keep 14 bits of sums of e4m3 products, so each block's are added to float32 numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.attention.kernel import MIN_SCALE
from octavo.backends.gpu.attention.prefill_hopper_kernel import (
    HALF,
    REGISTERS,
    KernelArgs,
    KVRing,
    along,
    last_seen,
    num_tiles,
    query_places,
    release,
    sums_layout,
    tile_scheduler,
    wait_ready,
)
from octavo.backends.gpu.compile.gluon_names import barrier, copy_tile
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers, column_halves

ROUND = gl.constexpr(12582912.0)  # 1.5 * 2^23: a float32 of this size has an integer in its low bits
ROUND_BITS = gl.constexpr(0x4B400000)
OFFSET = gl.constexpr(8.0)  # log2 of the largest weight
MIN_UNIT = gl.constexpr(-120.0)


class Running(NamedTuple):
    """What a group knows of the blocks so far.

    words  weights of the last block, four e4m3 numbers in an int32 [64, block_n / 4]
    most   [64], the largest scores
    total  [64, 4], of the weights that a thread has
    unit   the log2 of the largest scale of values
    keep   [64], what sums before the last block's are to be multiplied by
    """

    words: Any
    most: Any
    total: Any
    unit: Any
    keep: Any


@gluon.constexpr_function
def _code_type(shape):
    return gl.int8 if shape.products == "int8" else gl.float8e4nv


@gluon.jit
def _row_max(x):
    """The largest of each row of sums [64, n], by halves first: one number after the other would wait for the last."""
    rows: gl.constexpr = gl.SliceLayout(1, x.type.layout)
    left, right = column_halves(x)
    left, right = column_halves(gl.maximum(left, right))
    left, right = column_halves(gl.maximum(left, right))
    return gl.convert_layout(gl.max(gl.maximum(left, right), 1), rows)


@gluon.jit
def _lane_sums(x):
    """Sums of each row of sums [64, n] that a thread has, [64, 4]: threads need those of others at the end alone."""
    return gl.sum(gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def _place_of(tile, items, shape: gl.constexpr):
    """A sequence's head of keys among all."""
    return tile.sequence * (items.heads // shape.group) + tile.head // shape.group


@gluon.jit
def _producer(keys, values, args, ring, shape: gl.constexpr):
    """Fill the ring with the blocks of tile after tile, a stage as soon as both groups have read it."""
    BYTES: gl.constexpr = shape.block_n * shape.dim
    count = 0
    for step in range(num_tiles(args.items)):
        tile = tile_scheduler(step, args, shape)
        place = _place_of(tile, args.items, shape)
        for i in range(tile.blocks):
            slot, phase = count % shape.stages, ((count // shape.stages) & 1) ^ 1
            first = (tile.blocks - 1 - i) * shape.block_n
            mbarrier.wait(ring.k_free.index(slot), phase)
            mbarrier.expect(ring.k_ready.index(slot), BYTES)
            copy_tile(keys, [place * args.items.width + first, 0], ring.k_ready.index(slot), ring.k.index(slot))
            mbarrier.wait(ring.v_free.index(slot), phase)
            mbarrier.expect(ring.v_ready.index(slot), BYTES)
            copy_tile(values, [place * shape.dim, first], ring.v_ready.index(slot), ring.v.index(slot))
            count += 1


@gluon.jit
def _load_queries(q, tile, token, ring, scale, shape: gl.constexpr):
    """Put codes of 64 queries from `token` on into shared memory, and their scales."""
    ACROSS: gl.constexpr = shape.dim // 16
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    place, mask = query_places(q, tile, token, shape, layout)
    value = gl.load(place, mask=mask, other=0.0)  # [64, dim]
    TOP: gl.constexpr = 127.0 if shape.products == "int8" else 448.0
    most = gl.maximum(gl.max(gl.abs(value), 1), MIN_SCALE)
    value *= (TOP / most)[:, None]
    if shape.products == "int8":
        ring.queries.store((value + ROUND).to(gl.int32, bitcast=True).to(gl.int8))
    else:
        ring.queries.store(value.to(gl.float8e4nv))
    ring.scales.store(most * (scale / TOP))
    fence_async_shared()
    barrier()


@gluon.jit
def _scores(ring, count, shape: gl.constexpr):
    """Have the tensor cores multiply the group's queries with the keys of the ring's block `count`, once these are
    there. Sums of integers begin at the bits of ROUND, so that they are float32 numbers."""
    wait_ready(ring.k_ready, count, shape)
    keys = ring.k.index(count % shape.stages).permute((1, 0))
    INTEGERS: gl.constexpr = shape.products == "int8"
    if INTEGERS:
        begin = gl.full([HALF, shape.block_n], ROUND_BITS, gl.int32, sums_layout(shape.block_n, 32))
    else:
        begin = gl.zeros([HALF, shape.block_n], gl.float32, sums_layout(shape.block_n, 32))
    return warpgroup_mma(ring.queries, keys, begin, use_acc=INTEGERS, is_async=True)  # [64, dim] @ [dim, block_n]


@gluon.jit
def _sums_of_values(ring, count, weights, shape: gl.constexpr):
    """Have the tensor cores multiply weights with the values of the ring's block `count`, once these are there."""
    wait_ready(ring.v_ready, count, shape)
    values = ring.v.index(count % shape.stages).permute((1, 0))
    nothing = gl.zeros([HALF, shape.dim], gl.float32, sums_layout(shape.dim, 32))
    return warpgroup_mma(weights, values, nothing, use_acc=False, is_async=True)  # [64, block_n] @ [block_n, dim]


@gluon.jit
def _packed(p, shape: gl.constexpr):
    """Weights [64, block_n] as words of four e4m3 numbers of one thread, [64, block_n / 4]; halves are exchanged."""
    p = p.reshape([HALF, shape.block_n // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    even, odd = p.reshape([HALF, shape.block_n // 4, 2, 2]).split()
    a, c = even.split()
    b, d = odd.split()
    return gl.inline_asm_elementwise(
        "{.reg .b16 x, y; cvt.rn.satfinite.e4m3x2.f32 x, $2, $1; cvt.rn.satfinite.e4m3x2.f32 y, $4, $3;"
        " mov.b32 $0, {y, x};}",
        "=r,f,f,f,f", [a, b, c, d], dtype=gl.int32, is_pure=True, pack=1,
    )


@gluon.jit
def _operand(words, shape: gl.constexpr):
    """What `_packed` made as the left factor of a product, where it lies; columns are in `encode_kernel`'s order.

    Halves are exchanged once more. A mere copy the assembler would leave out, and then each product had to end before
    the next weights are made.
    """
    operand: gl.constexpr = gl.DotOperandLayout(0, sums_layout(shape.dim, 32), 4)
    twice = gl.join(words, words)
    each = gl.convert_layout(gl.join(twice, twice).reshape([HALF, shape.block_n]), operand)
    codes = gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $1, 0x1032;", "=r,r,r,r,r", [each], dtype=gl.int8, is_pure=False, pack=4
    )
    return codes.to(gl.float8e4nv, bitcast=True)


@gluon.jit
def _online_softmax(scores, block, limit, so_far, q_scale, k_scale, v_unit, MASK: gl.constexpr, shape: gl.constexpr):
    """The Running after a block with these scores, the scale of its keys, and the log2 of that of its values.

    Row i sees positions up to limit[i]; with MASK that may not be the whole block.
    """
    INTEGERS: gl.constexpr = shape.products == "int8"
    factor = q_scale * k_scale  # [64]
    s = scores.to(gl.float32, bitcast=True)
    if MASK:
        at = block * shape.block_n + gl.arange(0, shape.block_n, gl.SliceLayout(0, scores.type.layout))
        s = gl.where(at[None, :] <= limit[:, None], s, float("-inf"))
    if INTEGERS and not MASK:
        top = _row_max(scores).to(gl.float32, bitcast=True)
    else:
        top = _row_max(s)
    if INTEGERS:
        top -= ROUND
    most = gl.maximum(so_far.most, top * factor)
    unit = gl.maximum(so_far.unit, v_unit)
    shift = most
    if MASK:
        shift = gl.where(most == float("-inf"), 0.0, most)
    keep = gl.exp2(so_far.most - shift)
    shift -= OFFSET + v_unit - unit
    if INTEGERS:
        shift += ROUND * factor
    p = gl.exp2(s * factor[:, None] - shift[:, None])  # [64, block_n]
    total = so_far.total * along(keep, so_far.total) + _lane_sums(p) * gl.exp2(unit - v_unit)
    return Running(_packed(p, shape), most, total, unit, keep * gl.exp2(so_far.unit - unit))


@gluon.jit
def _attend_blocks(
    ring, done, count, first, end, so_far, acc, limit, q_scale, factors, MASK: gl.constexpr, shape: gl.constexpr
):
    """Weights of the blocks from `first` down to the one after `end`, and sums of the block before each.

    Block `first` is the ring's block `count`, and `done` tiles are. Totals are written down where nobody reads
    them: the assembler would otherwise wait for the sums first and take the soft-max after that.
    """
    for i in range(first - end):
        k_scale, v_unit = gl.load(factors + (first - i) * 2), gl.load(factors + (first - i) * 2 + 1)
        weights = _operand(so_far.words, shape)
        if shape.in_turn:
            mbarrier.wait(ring.mine, (count - 1 - done) & 1)
        scores = _scores(ring, count, shape)
        part = _sums_of_values(ring, count - 1, weights, shape)
        if shape.in_turn:
            mbarrier.arrive(ring.others)
        scores = warpgroup_mma_wait(1, [scores])
        release(ring.k_free, count, shape)
        after = _online_softmax(scores, first - i, limit, so_far, q_scale, k_scale, v_unit, MASK, shape)
        ring.totals.store(after.total)
        part = warpgroup_mma_wait(0, [part])
        release(ring.v_free, count - 1, shape)
        acc = acc * along(so_far.keep, acc) + part
        so_far = after
        count += 1
    return count, so_far, acc


@gluon.jit
def _consumer(q, args, ring, out, scale, WHICH: gl.constexpr, shape: gl.constexpr):
    """Attend with the first (WHICH 0) or second 64 queries of tile after tile.

    A tile's place is read while the tile before is under way, and its queries during the last product of that.
    """
    rows: gl.constexpr = gl.SliceLayout(1, sums_layout(shape.block_n, 32))
    count, done = 0, 0
    tile = tile_scheduler(0, args, shape)
    if tile.blocks > 0:
        _load_queries(q, tile, tile.token + WHICH * HALF, ring, scale, shape)
    for step in range(num_tiles(args.items)):
        following = tile_scheduler(step + 1, args, shape)
        next_first = following.token + WHICH * HALF
        if tile.blocks > 0:
            first = tile.token + WHICH * HALF
            limit, earliest = last_seen(tile, first, args, rows)
            q_scale = ring.scales.load(rows)
            factors = args.factors + _place_of(tile, args.items, shape) * (args.items.width // shape.block_n * 2)
            block = tile.blocks - 1
            k_scale, v_unit = gl.load(factors + block * 2), gl.load(factors + block * 2 + 1)
            scores = warpgroup_mma_wait(0, [_scores(ring, count, shape)])
            release(ring.k_free, count, shape)
            lowest = gl.full([HALF], float("-inf"), gl.float32, rows)
            total = _lane_sums(gl.zeros([HALF, shape.block_n], gl.float32, sums_layout(shape.block_n, 32)))
            so_far = Running(0, lowest, total, MIN_UNIT, lowest)
            so_far = _online_softmax(scores, block, limit, so_far, q_scale, k_scale, v_unit, True, shape)
            acc = gl.zeros([HALF, shape.dim], gl.float32, sums_layout(shape.dim, 32))
            whole = gl.minimum((earliest + 1) // shape.block_n, block)  # blocks of which every query sees all
            count, so_far, acc = _attend_blocks(
                ring, done, count + 1, block - 1, whole - 1, so_far, acc, limit, q_scale, factors, True, shape
            )
            count, so_far, acc = _attend_blocks(
                ring, done, count, whole - 1, -1, so_far, acc, limit, q_scale, factors, False, shape
            )
            part = _sums_of_values(ring, count - 1, _operand(so_far.words, shape), shape)
            if following.blocks > 0:
                _load_queries(q, following, next_first, ring, scale, shape)
            part = warpgroup_mma_wait(0, [part])
            release(ring.v_free, count - 1, shape)
            done += 1
            acc = acc * along(so_far.keep, acc) + part
            factor = gl.exp2(so_far.unit) / gl.sum(so_far.total, 1)
            layout: gl.constexpr = acc.type.layout
            place, mask = query_places(out, tile, first, shape, layout)
            gl.store(place, acc * along(factor, acc), mask=mask)  # [64, dim]
        tile = following


@gluon.jit
def prefill_8bit_hopper_kernel(
    q, keys, values, factors, positions, starts, items, out, scale, shape: gl.constexpr, PDL: gl.constexpr
):
    """As many programs as run at once take item after item: 128 queries of a head of a sequence.

    keys and values are descriptors of blocks [block_n, dim] and [dim, block_n] of Codes, factors theirs, and shape an
    Prefill8BitShape. Other arguments are those of `prefill_hopper_kernel.prefill_hopper_kernel`.
    """
    if PDL:
        gdc_launch_dependents()
    STAGES: gl.constexpr = shape.stages
    KIND: gl.constexpr = _code_type(shape)
    rows: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, shape.dim], KIND)
    across: gl.constexpr = gl.NVMMASharedLayout.get_default_for([shape.dim, shape.block_n], gl.float8e4nv)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    queries = gl.allocate_shared_memory(KIND, [2, HALF, shape.dim], rows)
    scales = gl.allocate_shared_memory(gl.float32, [2, HALF], flat)
    totals = gl.allocate_shared_memory(gl.float32, [2, HALF, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    k = gl.allocate_shared_memory(KIND, [STAGES, shape.block_n, shape.dim], rows)
    v = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, shape.dim, shape.block_n], across)
    b = (barriers(STAGES), barriers(STAGES), barriers(STAGES, 2), barriers(STAGES, 2))
    c = barriers(2)
    if shape.in_turn:
        mbarrier.arrive(c.index(0))
    first = KVRing(
        queries.index(0), k, v, b[0], b[1], b[2], b[3], totals.index(0), scales.index(0), c.index(0), c.index(1)
    )
    second = KVRing(
        queries.index(1), k, v, b[0], b[1], b[2], b[3], totals.index(1), scales.index(1), c.index(1), c.index(0)
    )
    args = KernelArgs(positions, starts, items, factors)
    if PDL:
        gdc_wait()
    gl.warp_specialize(
        [
            (_consumer, (q, args, first, out, scale, 0, shape)),
            (_consumer, (q, args, second, out, scale, 1, shape)),
            (_producer, (keys, values, args, first, shape)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )
