# mypy: ignore-errors
"""Products of a few tokens with experts, each expert's weights read once, by int8 `mma.sync`.

Algorithm: pairs of a token and an expert are put into slots, those of an expert side by side in tiles of 8 or more; a
    tile is multiplied as a product of a few tokens is (`mmq.mma_kernel`).
Tile:
    ids      token 0: 3 1 | token 1: 1 0 | ...       -> `slot_kernel`, a program an expert
    slots    | expert 0: 1 pair, 7 empty | expert 1: 2 pairs, 6 empty | expert 3: ...
    q8_1     codes and scales of a pair's row at its slot
    program  (rows, tile): W [16 or more rows of the tile's expert, K] @ x^T [K, 8 or more slots]
Bound: instructions of decoding and of scales, four a weight: gate of gpt-oss 20B in MXFP4 with 32 and 128 pairs at 38%
    and 40% of the read limit of an H200 (bench/results/gpu-experts-2026-11-30.json).
Tried: docs/log.md: "A matvec for each pair is hard to beat with few of them".
Twin: `octavo.backends.reference.ops.mul_mat_id`

What is at a slot without a pair is whatever was there; its results are not stored.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.launch.arguments import Q8Activation
from octavo.backends.gpu.matmul.activations import read, store_q8_1
from octavo.backends.gpu.matmul.mmq.mma_kernel import lane_rows, places, products, summed

NONE = tl.constexpr(-1)
"""The expert of a tile that there is none of, and the pair of an empty slot."""


@triton.jit
def slot_kernel(
    ids, slots, pairs, tiles, n_pairs, n_tiles, SLOTS: tl.constexpr, EXPERTS: tl.constexpr, B: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program e: where the pairs whose id is e go.

    slots  int32 [n_pairs]: of each pair its slot
    pairs  int32 [n_tiles * SLOTS]: of each slot its pair; NONE for an empty one of a tile that there is
    tiles  int32 [n_tiles]: of each tile its expert; NONE for those after the last
    EXPERTS is a power of two, as many or more than there are programs.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    expert, each = tl.program_id(0), tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for start in range(0, n_pairs, B):
        pair = start + tl.arange(0, B)
        id = tl.load(ids + pair, mask=pair < n_pairs, other=0)
        counts += tl.histogram(id, EXPERTS, mask=pair < n_pairs)
    needed = (counts + SLOTS - 1) // SLOTS
    first, mine = tl.sum(tl.where(each < expert, needed, 0)), tl.sum(tl.where(each == expert, needed, 0))
    count = tl.sum(tl.where(each == expert, counts, 0))
    for start in range(first, first + mine, 64):
        tile = start + tl.arange(0, 64)
        tl.store(tiles + tile, tl.zeros((64,), tl.int32) + expert, mask=tile < first + mine)
    place = first * SLOTS
    empty = place + count + tl.arange(0, SLOTS)
    tl.store(pairs + empty, tl.full((SLOTS,), NONE, tl.int32), mask=empty < place + mine * SLOTS)
    if expert == tl.num_programs(0) - 1:
        for start in range(first + mine, n_tiles, 64):
            tile = start + tl.arange(0, 64)
            tl.store(tiles + tile, tl.full((64,), NONE, tl.int32), mask=tile < n_tiles)
    if count > 0:
        for start in range(0, n_pairs, B):
            pair = start + tl.arange(0, B)
            own = tl.load(ids + pair, mask=pair < n_pairs, other=NONE) == expert  # [B]
            slot = place + tl.cumsum(own.to(tl.int32)) - 1
            tl.store(slots + pair, slot, mask=own)
            tl.store(pairs + slot, pair, mask=own)
            place += tl.sum(own.to(tl.int32))


@triton.jit
def quantize_slots_kernel(
    source, slots, out, sharing, k, kp, KIND: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr
):
    """What `store_q8_1` makes of row pair // sharing of a Source, B values at a time, at the pair's slot."""
    pair, first = tl.program_id(0), tl.program_id(1) * B
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    at = first + tl.arange(0, B)
    value = read(source, 1.0, (pair // sharing).to(tl.int64), at, at < k, k, KIND)
    slot = tl.load(slots + pair).to(tl.int64)
    store_q8_1(tl.reshape(value, (B // 32, 32)), out, None, slot, first // 32, kp // 32, kp, B // 32)


@triton.jit
def experts_mma_kernel(
    w, x, pairs, tiles, y, n, shape: tl.constexpr, STRIDE: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr
):
    """y f32 [pairs, n]: a pair's row is its expert's W times what is at its slot of x, a Q8Activation.

    A program has shape.row_tiles tiles of 16 rows of one expert, the last of an expert its last rows, of which it
    stores only those that no other one has, and the slots of a tile. STRIDE is x.stride.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    LAYOUT: tl.constexpr = w.layout
    SLOTS: tl.constexpr = 8 * shape.token_tiles
    TILES: tl.constexpr = shape.row_tiles * shape.token_tiles
    PAIR: tl.constexpr = 2 if TILES > 1 else 1
    expert, first = tl.load(tiles + tl.program_id(1)), tl.program_id(1) * SLOTS
    if expert >= 0:
        start, wanted, warp, lane, within = lane_rows(n, shape)
        row = ()
        for at in tl.static_range(2 * shape.row_tiles):
            row = row + (expert.to(tl.int64) * n + within[at],)  # noqa: RUF005
        own = Q8Activation(
            x.codes + first.to(tl.int64) * LAYOUT.kp, x.scale + first, x.sums + first, x.sums16 + first, x.stride
        )
        acc = products(w, own, row, lane, warp, 0, SLOTS, shape, STRIDE, ASM, False)
        for i in tl.static_range(0, TILES, PAIR):
            total = summed(acc[i], acc[i + PAIR - 1], shape.warps, PAIR)  # [32, 2, 2, PAIR]
            if LAYOUT.factor != 1.0:
                total *= LAYOUT.factor
            column, token = places(i, start, shape, PAIR)
            pair = tl.load(pairs + (first + token))
            inside = (column >= wanted) & (column < n) & (pair >= 0)
            tl.store(y.data + pair.to(tl.int64) * y.stride + column, total, mask=inside)
