# mypy: ignore-errors
"""Causal attention of prompts (prefill) over a paged KV cache, for compute capability 9.0, in Gluon.

Algorithm: FlashAttention-3 (arXiv 2407.08608): warp-specialized, with softmax and products overlapped.
Tile:
    program            tile after tile: 128 queries of a head of a sequence
    producer warp      K V | K V | K V | ...           TMA into a ring of `stages` blocks of 128 positions
    consumer group 0   S=QK | softmax | S=QK PV | softmax | ...        64 queries
    consumer group 1         S=QK | softmax | S=QK PV | softmax ...    64 queries, out of phase
Bound: instructions, of the tensor cores and for exponentials: 458 TFLOPS at 2,048 tokens and 572 at 8,192 on an H200,
    heads of 128 (bench/results/gpu-prefill-q8_0-2026-11-23.json).
Tried: docs/log.md: "A wait for tensor cores has no operands, so the assembler moves it"; "int8 queries and keys did not
    make attention of prompts faster"; "A tile of attention of prompts costs four blocks besides its own".
Twin: `octavo.backends.reference.ops.attention`

While a group computes the online softmax of a block, the tensor cores multiply the weights of its previous block with
the values, or run the other group's products; no barrier makes the groups take turns. Blocks are taken from the last
one down, so that those which a query sees in part come first, and the others need no mask. The kernel is persistent:
`tile_scheduler` gives each program tile after tile. It takes heads of 64 or 128 values and a float16 cache, or the
float16 that `cache_codec_kernel` makes of a quantized one, and has no windows, caps or sinks.
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
from octavo.backends.gpu.compile.gluon_names import barrier, copy_tile
from octavo.backends.gpu.matmul.w8a8.hopper_tiles import barriers
from octavo.graph.node import PAGE_SIZE

PAGE = gl.constexpr(PAGE_SIZE)
TILE = gl.constexpr(128)  # queries
HALF = gl.constexpr(64)  # queries of a consumer group
PART = gl.constexpr(64)  # values of a row that are copied together
REGISTERS = gl.constexpr(240)  # of a thread that multiplies; those that copy need few


class KVRing(NamedTuple):
    """Shared memory for queries of a group and for blocks to come, and barriers for each stage of these.

    What is of 8 bits is for `prefill_8bit_kernel`, which has the same ring.

    queries           [64, dim]
    k, v              [stages, block_n, dim]; values of 8 bits [stages, dim, block_n]
    k_ready, v_ready  at which copies arrive
    k_free, v_free    at which both groups arrive
    totals            [64], or [64, 4] of 8 bits, see `_attend_blocks`
    scales            [64], of queries of 8 bits, times what scores are multiplied with
    mine, others      by which groups take turns to start products of 8 bits
    """

    queries: Any
    k: Any
    v: Any
    k_ready: Any
    v_ready: Any
    k_free: Any
    v_free: Any
    totals: Any
    scales: Any = None
    mine: Any = None
    others: Any = None


class KernelArgs(NamedTuple):
    """Arguments of the kernel that tell who sees what, and what scores and weights are multiplied with."""

    positions: Any
    starts: Any
    items: Any
    factors: Any


class TileFactors(NamedTuple):
    """What scores and results are multiplied with; with dynamic scales, where factors of scores and weights begin."""

    k: Any
    v: Any


class QueryTile(NamedTuple):
    """A tile of a head of a sequence.

    head      of the queries
    sequence  in the order of `starts`
    token     the tile's first
    end       the first token of the next sequence
    last      the last position that the tile sees
    blocks    of positions up to it; 0: there is nothing to do
    """

    head: Any
    sequence: Any
    token: Any
    end: Any
    last: Any
    blocks: Any


@gluon.jit
def wait_ready(ready, count, shape: gl.constexpr):
    """Wait until the ring's block `count` is there."""
    mbarrier.wait(ready.index(count % shape.stages), (count // shape.stages) & 1)


@gluon.jit
def release(free, count, shape: gl.constexpr):
    """This group has read the ring's block `count`."""
    mbarrier.arrive(free.index(count % shape.stages))


@gluon.jit
def num_tiles(items):
    """The most tiles that a program takes."""
    return gl.cdiv(items.heads * items.tiles, gl.num_programs(0))


@gluon.jit
def tile_scheduler(step, args, shape: gl.constexpr):
    """The tile that a program takes in a step.

    A sequence's last tiles, which see most, come first. Every second step counts programs backwards, so that those with
    more than others in one step have less in the next.
    """
    items = args.items
    programs, place = gl.num_programs(0), gl.program_id(0)
    item = step * programs + gl.where(step % 2 == 0, place, programs - 1 - place)
    head, left = item % items.heads, item // items.heads
    sequence, token, end = item * 0, item * 0, item * 0
    begin = gl.load(args.starts)
    for i in range(items.sequences):
        stop = gl.load(args.starts + i + 1)
        tiles = gl.cdiv(stop - begin, TILE)
        here = (left >= 0) & (left < tiles)
        sequence, token = gl.where(here, i, sequence), gl.where(here, begin + (tiles - 1 - left) * TILE, token)
        end = gl.where(here, stop, end)
        left -= tiles
        begin = stop
    last = gl.load(args.positions + gl.minimum(token + TILE, end) - 1, mask=token < end, other=-1)
    return QueryTile(head, sequence, token, end, last, (last + shape.block_n) // shape.block_n)


@gluon.jit
def _pages_of(pages, first, block, last, shape: gl.constexpr):
    """The pages of a block, from the list of a sequence that begins at `first`; the page of position `last` in place of
    later ones. Without lists, pages are in order."""
    found = ()
    for i in gl.static_range(shape.block_n // PAGE):
        place = first + gl.minimum(block * (shape.block_n // PAGE) + i, last // PAGE)
        found += (place if pages is None else gl.load(pages + place),)
    return found


@gluon.jit
def _copy_block(cache, pages, column, ready, out, shape: gl.constexpr):
    """Start copying pages of a head, whose values begin at `column`, to `out` [block_n, dim]."""
    mbarrier.expect(ready, shape.block_n * shape.dim * 2)
    for i in gl.static_range(shape.block_n // PAGE):
        for j in gl.static_range(shape.dim // PART):
            place = out.slice(i * PAGE, PAGE, 0).slice(j * PART, PART, 1)
            copy_tile(cache, [pages[i] * PAGE, column + j * PART], ready, place)


@gluon.jit
def _producer(keys, values, pages, args, ring, shape: gl.constexpr):
    """Fill the ring with the blocks of tile after tile, a stage as soon as both groups have read it."""
    count = 0
    for step in range(num_tiles(args.items)):
        tile = tile_scheduler(step, args, shape)
        column = tile.head // shape.group * shape.dim
        first = tile.sequence * args.items.width
        found = _pages_of(pages, first, gl.maximum(tile.blocks - 1, 0), gl.maximum(tile.last, 0), shape)
        for i in range(tile.blocks):
            slot, phase = count % shape.stages, ((count // shape.stages) & 1) ^ 1
            mbarrier.wait(ring.k_free.index(slot), phase)
            _copy_block(keys, found, column, ring.k_ready.index(slot), ring.k.index(slot), shape)
            mbarrier.wait(ring.v_free.index(slot), phase)
            _copy_block(values, found, column, ring.v_ready.index(slot), ring.v.index(slot), shape)
            found = _pages_of(pages, first, gl.maximum(tile.blocks - 2 - i, 0), tile.last, shape)
            count += 1


@gluon.constexpr_function
def sums_layout(columns, k=16):
    """The layout of sums [64 queries, columns] of a warp group's `wgmma`, which takes k values (32 bytes) at a time."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, k])


@gluon.jit
def query_places(x, tile, token, shape: gl.constexpr, layout: gl.constexpr):
    """Addresses [64, dim] of 64 queries from `token` on, or of their results, and which of them exist, [64, 1]."""
    token += gl.arange(0, HALF, gl.SliceLayout(1, layout))
    at = tile.head * shape.dim + gl.arange(0, shape.dim, gl.SliceLayout(0, layout))
    return x.data + token.to(gl.int64)[:, None] * x.stride + at[None, :], (token < tile.end)[:, None]


@gluon.jit
def along(x, like):
    """A number for each row, [64], in the layout of a matrix [64, n], as [64, 1]."""
    return gl.convert_layout(x, gl.SliceLayout(1, like.type.layout))[:, None]


@gluon.jit
def last_seen(tile, first, args, rows: gl.constexpr):
    """The last position that each of 64 queries from `first` on sees, [64], and that of the first of them."""
    token = first + gl.arange(0, HALF, rows)
    limit = gl.load(args.positions + token, mask=token < tile.end, other=tile.last)
    return limit, gl.load(args.positions + gl.minimum(first, tile.end - 1))


@gluon.jit
def _load_queries(q, tile, token, ring, shape: gl.constexpr):
    """Put 64 queries from `token` on into shared memory as float16."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    place, mask = query_places(q, tile, token, shape, layout)
    value = gl.load(place, mask=mask, other=0.0)  # [64, dim]
    ring.queries.store(value.to(gl.float16))
    fence_async_shared()
    barrier()


@gluon.jit
def _clear_unseen(ring, count, tile, shape: gl.constexpr):
    """Write zeros over values after the last position: a weight of 0 times an Inf or NaN that lies there would be NaN.

    The tile's last block is the ring's block `count`. Both groups write the same.
    """
    ROWS: gl.constexpr = 16
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    wait_ready(ring.v_ready, count, shape)
    for i in gl.static_range(shape.block_n // ROWS):
        rows = ring.v.index(count % shape.stages).slice(i * ROWS, ROWS, 0)
        position = (tile.blocks - 1) * shape.block_n + i * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        value = rows.load(layout)  # [16, dim]
        rows.store(gl.where((position <= tile.last)[:, None], value, gl.zeros_like(value)))
    fence_async_shared()
    barrier()


@gluon.jit
def _scores(ring, count, shape: gl.constexpr):
    """Start the product of the group's queries and the keys of the ring's block `count`, once these are there."""
    wait_ready(ring.k_ready, count, shape)
    keys = ring.k.index(count % shape.stages).permute((1, 0))
    nothing = gl.zeros([HALF, shape.block_n], gl.float32, sums_layout(shape.block_n))
    return warpgroup_mma(ring.queries, keys, nothing, use_acc=False, is_async=True)  # [64, dim] @ [dim, block_n]


@gluon.jit
def _add_values(ring, count, p, acc, shape: gl.constexpr):
    """Start adding p times the values of the ring's block `count` to acc, once these are there."""
    wait_ready(ring.v_ready, count, shape)
    return warpgroup_mma(p, ring.v.index(count % shape.stages), acc, is_async=True)  # [64, block_n] @ [block_n, dim]


@gluon.jit
def _factors_of(tile, args, scale, shape: gl.constexpr):
    """The TileFactors of a tile. `scale` includes log2(e), as factors of positions do: weights are powers of 2."""
    k, v, head = scale, 1.0, tile.head // shape.group
    if shape.scales == "dynamic":
        k = args.factors.k + (tile.sequence * (args.items.heads // shape.group) + head) * args.factors.stride
        v = k + shape.block_n
    elif shape.scales == "static":
        k *= gl.maximum(gl.load(args.factors.k + head) * shape.unit, MIN_SCALE)
        v = gl.load(args.factors.v + head) * shape.unit
    return TileFactors(k, v)


@gluon.jit
def _online_softmax(scores, block, limit, m, total, factors, MASK: gl.constexpr, shape: gl.constexpr):
    """Weights [64, block_n] of a block as float16, maxima, totals, and what earlier sums are to be multiplied by.

    Row i sees positions up to limit[i]. Without MASK that is the whole block.
    """
    scale = factors.k
    at = gl.arange(0, shape.block_n, gl.SliceLayout(0, scores.type.layout))
    if shape.scales == "dynamic":
        scale = 1.0
        scores *= gl.load(factors.k + block * (2 * shape.block_n) + at)[None, :]
    if MASK:
        scores = gl.where((block * shape.block_n + at)[None, :] <= limit[:, None], scores, float("-inf"))
    new = gl.maximum(m, gl.max(scores, 1))
    shift = new * scale
    if MASK:
        shift = gl.where(new == float("-inf"), 0.0, shift)
    p = gl.exp2(scores * scale - shift[:, None])  # [64, block_n]
    keep = gl.exp2(m * scale - shift)
    total = total * keep + gl.sum(p, 1)
    if shape.scales == "dynamic":
        p *= gl.load(factors.v + block * (2 * shape.block_n) + at)[None, :]
    operand: gl.constexpr = gl.DotOperandLayout(0, sums_layout(shape.dim), 2)
    return gl.convert_layout(p.to(gl.float16), operand), new, total, keep


@gluon.jit
def _attend_blocks(ring, count, first, end, p, m, total, acc, limit, factors, MASK: gl.constexpr, shape: gl.constexpr):
    """Go from block `first` down to end + 1: the scores and weights of each, beside the sums of the one before it.

    Block `first` is the ring's block `count`; the weights `p` are of the block before it. Totals are stored where
    nobody reads them: otherwise the assembler puts the wait for the sums ahead of the softmax.
    """
    for i in range(first - end):
        scores = _scores(ring, count, shape)
        acc = _add_values(ring, count - 1, p, acc, shape)
        scores = warpgroup_mma_wait(1, [scores])
        release(ring.k_free, count, shape)
        next_p, m, total, keep = _online_softmax(scores, first - i, limit, m, total, factors, MASK, shape)
        ring.totals.store(total)
        acc = warpgroup_mma_wait(0, [acc])
        release(ring.v_free, count - 1, shape)
        acc *= along(keep, acc)
        p = next_p
        count += 1
    return count, p, m, total, acc


@gluon.jit
def _consumer(q, args, ring, out, scale, WHICH: gl.constexpr, shape: gl.constexpr):
    """Attend with the first (WHICH 0) or second 64 queries of tile after tile.

    The next tile is looked up before a tile is computed, and its queries are loaded during that tile's last product.
    """
    rows: gl.constexpr = gl.SliceLayout(1, sums_layout(shape.block_n))
    count = 0
    tile = tile_scheduler(0, args, shape)
    if tile.blocks > 0:
        _load_queries(q, tile, tile.token + WHICH * HALF, ring, shape)
    for step in range(num_tiles(args.items)):
        following = tile_scheduler(step + 1, args, shape)
        next_first = following.token + WHICH * HALF
        if tile.blocks > 0:
            first = tile.token + WHICH * HALF
            limit, earliest = last_seen(tile, first, args, rows)
            factors = _factors_of(tile, args, scale, shape)
            m = gl.full([HALF], float("-inf"), gl.float32, rows)
            total = gl.zeros([HALF], gl.float32, rows)
            acc = gl.zeros([HALF, shape.dim], gl.float32, sums_layout(shape.dim))
            block = tile.blocks - 1
            scores = warpgroup_mma_wait(0, [_scores(ring, count, shape)])
            release(ring.k_free, count, shape)
            p, m, total, _ = _online_softmax(scores, block, limit, m, total, factors, True, shape)
            if tile.last % shape.block_n < shape.block_n - 1:
                _clear_unseen(ring, count, tile, shape)
            whole = gl.minimum((earliest + 1) // shape.block_n, block)  # blocks of which every query sees all
            count, p, m, total, acc = _attend_blocks(
                ring, count + 1, block - 1, whole - 1, p, m, total, acc, limit, factors, True, shape
            )
            count, p, m, total, acc = _attend_blocks(
                ring, count, whole - 1, -1, p, m, total, acc, limit, factors, False, shape
            )
            acc = _add_values(ring, count - 1, p, acc, shape)
            if following.blocks > 0:
                _load_queries(q, following, next_first, ring, shape)
            acc = warpgroup_mma_wait(0, [acc])
            release(ring.v_free, count - 1, shape)
            if shape.scales == "static":
                acc *= factors.v
            total = along(total, acc)
            layout: gl.constexpr = acc.type.layout
            place, mask = query_places(out, tile, first, shape, layout)
            gl.store(place, acc / total, mask=mask)  # [64, dim]
        tile = following


@gluon.jit
def prefill_hopper_kernel(
    q, keys, values, factors, pages, positions, starts, items, out, scale, shape: gl.constexpr, PDL: gl.constexpr
):
    """As many programs as run at once take tile after tile: 128 queries of a head of a sequence.

    q, out      float32 [T, query heads * dim]
    keys        descriptor of parts [64, 64] of a float16 cache [rows, heads * dim]; values likewise
    pages       int32 [sequences, width], or None where each sequence has its rows in order
    positions   int32 [T], ascending within a sequence
    starts      int32 [sequences + 1], the first token of each sequence, and the end
    scale       what scores are multiplied with, times log2(e)

    factors, items and shape are a Factors, an Items and a PrefillShape of `prefill_hopper_launch`.
    """
    if PDL:
        gdc_launch_dependents()
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([shape.block_n, shape.dim], gl.float16)
    STAGES: gl.constexpr = shape.stages
    queries = gl.allocate_shared_memory(gl.float16, [2, HALF, shape.dim], tile)
    totals = gl.allocate_shared_memory(gl.float32, [2, HALF], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    k = gl.allocate_shared_memory(gl.float16, [STAGES, shape.block_n, shape.dim], tile)
    v = gl.allocate_shared_memory(gl.float16, [STAGES, shape.block_n, shape.dim], tile)
    stages = (barriers(STAGES), barriers(STAGES), barriers(STAGES, 2), barriers(STAGES, 2))
    first = KVRing(queries.index(0), k, v, stages[0], stages[1], stages[2], stages[3], totals.index(0))
    second = KVRing(queries.index(1), k, v, stages[0], stages[1], stages[2], stages[3], totals.index(1))
    args = KernelArgs(positions, starts, items, factors)
    if PDL:
        gdc_wait()
    gl.warp_specialize(
        [
            (_consumer, (q, args, first, out, scale, 0, shape)),
            (_consumer, (q, args, second, out, scale, 1, shape)),
            (_producer, (keys, values, pages, args, first, shape)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )
