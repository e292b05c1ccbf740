# mypy: ignore-errors
"""Decoding attention on the tensor cores, in Gluon.

Algorithm: flash-decoding (split-KV) by `mma.sync`, with a cp.async ring. Codes are multiplied as they lie, or as
    float16 made in registers.
Tile:
    cache --cp.async--> ring of `stages` blocks in shared memory --> registers --> mma.sync
                        [warps, tokens, D] keys and values: each warp has tokens of its own, joined at the end alone
Bound: bytes of the cache: 79% of the read limit on an H200 for one sequence of 32,768 tokens from float16, 96% for
    eight, 67% and 91% from int8 (bench/results/gpu-attention-2026-11-24.json).
Tried: docs/log.md: "Decoding attention spent its time before and after its blocks"; "Two programs that do not fit a
    multiprocessor's shared memory take turns"; "Fetching the block of a token's own row into the L2 before the wait
    gained nothing"; "What one format gains by a kernel with much shared memory another one loses".
Twin: `octavo.backends.reference.ops.attention`

Lane 4 g + t of a warp takes keys of tokens g and values of tokens 2 t and 2 t + 1 from the ring, 16 neighbouring bytes
at a time, as the operands of a product lie. Which values of a head lie where in an operand is free, as long as both
factors agree (keys), or the result is put in order at the end (values). Rows are the query heads of a head of keys,
padded to 8 or 16. Nothing waits until a block is wanted.

Rows of scores are there twice: for what float16 or int8 hold of a query, and for what is left of it. So a query of int8
has 15 bits, and int8 keys are multiplied as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo.backends.gpu.attention.decode_combine import combine, store_result
from octavo.backends.gpu.attention.kernel import LOG2E, MIN_SCALE, head_scale_of, visible_blocks
from octavo.backends.gpu.compile.gluon_names import barrier, copy_async
from octavo.backends.gpu.matmul.w8a8.quantize_kernel import ROUND
from octavo.backends.gpu.weights.decode_half import HALVES_OF_FP8, HALVES_OF_INT8
from octavo.graph.node import PAGE_SIZE

PAGE = gl.constexpr(PAGE_SIZE)
REST = gl.constexpr(254.0)  # steps of a query's rest in a step of the query
NEAR_HALVES_OF_FP8 = gl.constexpr("""{ .reg .b16 a, b; .reg .b32 t; mov.b32 {a, b}, $2; mov.b32 t, 0x1c001c00;
cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; mul.rn.f16x2 $0, $0, t; mul.rn.f16x2 $1, $1, t; }""")
"""`HALVES_OF_FP8` by the instruction of compute capability 8.9, times 2^-8."""


@gluon.constexpr_function
def copy_layout(warps, dim, width):
    """How threads copy keys or values [warps, tokens, dim] to shared memory, 16 bytes each at a time."""
    across = min(32, dim // width)
    return gl.BlockedLayout([1, 1, width], [1, 32 // across, across], [warps, 1, 1], [2, 1, 0])


@gluon.constexpr_function
def shared_layout(width):
    """How keys or values lie in shared memory: eight tokens' same values are in as many banks."""
    return gl.SwizzledSharedLayout(width, 1, 8, [2, 1, 0])


class DecodeRing(NamedTuple):
    """Shared memory for blocks that are on their way, [stages, warps, tokens, ...].

    k, v                codes or floats
    k_scales, v_scales  [..., dim / 32] of q8_0; nobody reads them where there are none
    """

    k: Any
    v: Any
    k_scales: Any
    v_scales: Any


@gluon.jit
def ring_of(cache, shape: gl.constexpr):
    """An empty DecodeRing."""
    STAGES: gl.constexpr = shape.stages
    WIDTH: gl.constexpr = shape.width
    WARPS: gl.constexpr = shape.warps
    TOKENS: gl.constexpr = shape.tokens
    COUNT: gl.constexpr = shape.dim // 32
    KIND: gl.constexpr = cache.k.dtype.element_ty
    k = gl.allocate_shared_memory(KIND, [STAGES, WARPS, TOKENS, shape.dim], shared_layout(WIDTH))
    v = gl.allocate_shared_memory(KIND, [STAGES, WARPS, TOKENS, shape.dim], shared_layout(WIDTH))
    k_scales, v_scales = k, v
    if shape.kind == "q8_0":
        GROUPS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
        k_scales = gl.allocate_shared_memory(gl.float16, [STAGES, WARPS, TOKENS, COUNT], GROUPS)
        v_scales = gl.allocate_shared_memory(gl.float16, [STAGES, WARPS, TOKENS, COUNT], GROUPS)
    return DecodeRing(k, v, k_scales, v_scales)


@gluon.jit
def places(cache, sequence, start, stop, shape: gl.constexpr, LAYOUT: gl.constexpr):
    """Rows of the cache, int64 [warps, tokens], of a block of positions from `start` on; which are below `stop`."""
    WARPS: gl.constexpr = shape.warps
    TOKENS: gl.constexpr = shape.tokens
    warp = start + gl.arange(0, WARPS, gl.SliceLayout(1, LAYOUT)) * TOKENS
    token = gl.arange(0, TOKENS, gl.SliceLayout(0, LAYOUT)).expand_dims(0)
    page = gl.load(cache.pages + sequence * cache.width + warp // PAGE, mask=warp < stop, other=0)
    row = page.to(gl.int64) * PAGE + warp % PAGE
    return row.expand_dims(1) + token, warp.expand_dims(1) + token < stop


@gluon.jit
def fetch(ring, cache, sequence, head, slot, start, stop, shape: gl.constexpr):
    """Have positions from `start` to below `stop`, a block at most, copied to a slot of the ring, zeros beyond."""
    WARPS: gl.constexpr = shape.warps
    COPY: gl.constexpr = copy_layout(WARPS, shape.dim, shape.width)
    row, seen = places(cache, sequence, start, stop, shape, gl.SliceLayout(2, COPY))
    at = gl.arange(0, shape.dim, gl.SliceLayout(0, gl.SliceLayout(1, COPY))).expand_dims(0).expand_dims(1)
    place = ((row * cache.heads + head) * shape.dim).expand_dims(2) + at
    copy_async(ring.k.index(slot), cache.k + place, mask=seen.expand_dims(2))
    copy_async(ring.v.index(slot), cache.v + place, mask=seen.expand_dims(2))
    if shape.kind == "q8_0":
        COUNT: gl.constexpr = shape.dim // 32
        GROUPS: gl.constexpr = gl.BlockedLayout([1, 1, COUNT], [1, 32, 1], [WARPS, 1, 1], [2, 1, 0])
        row, seen = places(cache, sequence, start, stop, shape, gl.SliceLayout(2, GROUPS))
        at = gl.arange(0, COUNT, gl.SliceLayout(0, gl.SliceLayout(1, GROUPS))).expand_dims(0).expand_dims(1)
        place = ((row * cache.heads + head) * COUNT).expand_dims(2) + at
        copy_async(ring.k_scales.index(slot), cache.k_scales + place, mask=seen.expand_dims(2))
        copy_async(ring.v_scales.index(slot), cache.v_scales + place, mask=seen.expand_dims(2))


@gluon.constexpr_function
def scales_layout(shape):
    """How lanes hold scales [warps, rows, tokens] of their tokens, the same for all rows."""
    lanes = min(32, shape.tokens)
    rows = shape.rows * lanes // 32
    return gl.BlockedLayout([1, rows, 1], [1, 32 // lanes, lanes], [shape.warps, 1, 1], [2, 1, 0])


@gluon.jit
def of_scores(scales, shape: gl.constexpr, LAYOUT: gl.constexpr):
    """What `scales_of` gave, [warps, rows, tokens] as scores lie: each lane asks those that have its scores' scales, so
    that no warp waits for another."""
    WARPS: gl.constexpr = shape.warps
    ROWS: gl.constexpr = shape.rows
    TOKENS: gl.constexpr = shape.tokens
    nothing = gl.full([WARPS, ROWS, TOKENS], 0.0, gl.float32, scales_layout(shape))
    each, _ = gl.broadcast(scales.expand_dims(1) * shape.unit, nothing)
    if TOKENS == 32:  # a lane's own scale in all of its registers, by other names
        each = each.reshape([WARPS, ROWS // 8, 2, 2, 2, 2, 2, 2, 2, 2]).permute((0, 1, 5, 6, 7, 2, 3, 8, 9, 4))
        own = gl.convert_layout(each.reshape([WARPS, ROWS, TOKENS]), LAYOUT, True)
        token = gl.arange(0, TOKENS, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))).expand_dims(0).expand_dims(1)
        token, _ = gl.broadcast(token, own)
        ASK: gl.constexpr = "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;"
        each = gl.inline_asm_elementwise(ASK, "=f,f,r", [own, token], dtype=gl.float32, is_pure=False, pack=1)
    else:
        each = gl.convert_layout(each, LAYOUT)
    return each


@gluon.jit
def scales_of(cache, sequence, head, start, stop, shape: gl.constexpr):
    """Dynamic scales of keys and values [warps, tokens] of a block of positions from `start` on, zeros from `stop` on.

    A lane has those of its own tokens, few registers for scales that are on their way. With room for them in the ring
    two programs would not fit a multiprocessor with 60 KiB of L1.
    """
    row, seen = places(cache, sequence, start, stop, shape, gl.SliceLayout(1, scales_layout(shape)))
    place = (row // PAGE * cache.heads + head) * PAGE + row % PAGE
    k = gl.load(cache.k_scales + place, mask=seen, other=0.0, cache_modifier=".cg")
    return k, gl.load(cache.v_scales + place, mask=seen, other=0.0, cache_modifier=".cg")


@gluon.constexpr_function
def _bits(n, step=1):
    """1, 2, 4, ... below n, from `step` on."""
    out = []
    while step < n:
        out.append(step)
        step *= 2
    return out


@gluon.constexpr_function
def product_layout(warps):
    """How results of products [warps, ...] lie, a warp's own product each."""
    return gl.NVMMADistributedLayout([2, 0], [warps, 1, 1], [1, 16, 8])


@gluon.constexpr_function
def weights_layout(warps, rows, tokens):
    """How scores and weights [warps, rows, tokens] lie, as the product leaves them and as the next one takes them."""
    regs = [[0, 0, 1]] + [[0, 0, b] for b in _bits(tokens, 8)] + [[0, b, 0] for b in _bits(rows, 8)]
    lanes = [[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(regs, lanes, [[b, 0, 0] for b in _bits(warps)], [], [warps, rows, tokens])


@gluon.constexpr_function
def values_layout(warps, tokens, dim, width):
    """How values [warps, tokens, dim] are read: `width` neighbours at a time, eight lanes side by side."""
    regs = [[0, 0, b] for b in _bits(width)] + [[0, 0, b] for b in _bits(dim, 8 * width)]
    regs += [[0, 1, 0]] + [[0, b, 0] for b in _bits(tokens, 8)]
    lanes = [[0, 2, 0], [0, 4, 0], [0, 0, width], [0, 0, 2 * width], [0, 0, 4 * width]]
    return gl.DistributedLinearLayout(regs, lanes, [[b, 0, 0] for b in _bits(warps)], [], [warps, tokens, dim])


@gluon.jit
def halves(codes, shape: gl.constexpr):
    """float16 of codes: int8 as they are, e4m3 over 256."""
    if shape.kind == "fp8":
        ASM: gl.constexpr = NEAR_HALVES_OF_FP8 if shape.converts else HALVES_OF_FP8
    else:
        ASM: gl.constexpr = HALVES_OF_INT8
    return gl.inline_asm_elementwise(ASM, "=&r,=&r,r", [codes], dtype=gl.float16, is_pure=True, pack=4)


@gluon.constexpr_function
def queries_layout(warps, rows, dim, width):
    """How half of the rows of the queries' operand [1, 2 rows, dim] lie, `width` neighbours in a lane."""
    regs = [[0, 0, b] for b in (*_bits(width), *_bits(dim, 4 * width))] + [[0, b, 0] for b in _bits(rows, 8)]
    lanes = [[0, 0, width], [0, 0, 2 * width], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(regs, lanes, [[0, 0, 0] for b in _bits(warps)], [], [1, rows, dim])


@gluon.jit
def queries_of(q, sequence, head, shape: gl.constexpr, LAYOUT: gl.constexpr):
    """Queries [1, 2 rows, dim] as the product takes them, float16 or int8, and what they were divided by, [1, rows].

    The first half is rounded, the second what rounding has left: of float16 as it is, of int8 in steps of 1 / REST.
    """
    ROWS: gl.constexpr = shape.rows
    HALF: gl.constexpr = queries_layout(shape.warps, ROWS, shape.dim, shape.width)
    row = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, HALF))).expand_dims(0).expand_dims(2)
    at = gl.arange(0, shape.dim, gl.SliceLayout(0, gl.SliceLayout(1, HALF))).expand_dims(0).expand_dims(1)
    q_at = q.data + sequence * q.stride + (head * shape.group + row) * shape.dim + at
    value = gl.load(q_at, mask=row < shape.group, other=0.0)  # [1, ROWS, DIM]
    if shape.kind == "int8":
        step = gl.max(gl.abs(value), 2) / 127.0  # [1, ROWS]
        value *= (1.0 / gl.where(step > 0, step, 1.0)).expand_dims(2)
        whole = value + ROUND  # whose lowest bits are an integer: there are few units for conversions
        rest = (value - (whole - ROUND)) * REST + ROUND
        near = whole.to(gl.int32, bitcast=True).to(gl.int8)
        far = rest.to(gl.int32, bitcast=True).to(gl.int8)
    else:
        step = gl.full([1, ROWS], 1.0, gl.float32, gl.SliceLayout(2, HALF))
        near = value.to(gl.float16)
        far = (value - near.to(gl.float32)).to(gl.float16)
    both = gl.join(near.to(far.dtype), far).permute((0, 3, 1, 2)).reshape([1, 2 * ROWS, shape.dim])
    return gl.convert_layout(both, LAYOUT, True), step


@gluon.jit
def keys_of(ring, slot, shape: gl.constexpr, LAYOUT: gl.constexpr):
    """A block's keys [warps, dim, tokens] as the product takes them: int8 as they are, others float16."""
    keys = ring.k.index(slot).permute((0, 2, 1)).load(LAYOUT)
    if shape.kind == "fp8":
        keys = halves(keys, shape)
    elif shape.kind == "q8_0":
        parts = halves(keys, shape).reshape([shape.warps, shape.dim // 32, 32, shape.tokens]).permute((0, 3, 1, 2))
        SCALES: gl.constexpr = gl.SliceLayout(3, parts.type.layout)
        parts *= ring.k_scales.index(slot).load(SCALES).expand_dims(3)  # [warps, tokens, dim / 32, 32]
        keys = parts.permute((0, 2, 3, 1)).reshape([shape.warps, shape.dim, shape.tokens])
        keys = gl.convert_layout(keys, LAYOUT, True)
    return keys


@gluon.jit
def values_of(ring, slot, shape: gl.constexpr, LAYOUT: gl.constexpr):
    """A block's values, float16 [warps, dim, tokens], as the product takes them.

    Value 8 WIDTH i + WIDTH g + j of a head is in row 8 WIDTH i + 8 j + g.
    """
    WIDTH: gl.constexpr = shape.width
    value = ring.v.index(slot).load(values_layout(shape.warps, shape.tokens, shape.dim, WIDTH))
    if shape.kind != "":
        value = halves(value, shape)
    if shape.kind == "q8_0":
        parts = value.reshape([shape.warps, shape.tokens, shape.dim // 32, 32])
        SCALES: gl.constexpr = gl.SliceLayout(3, parts.type.layout)
        parts *= ring.v_scales.index(slot).load(SCALES).expand_dims(3)
        value = parts.reshape([shape.warps, shape.tokens, shape.dim])
    value = value.reshape([shape.warps, shape.tokens, shape.dim // (8 * WIDTH), 8, WIDTH]).permute((0, 2, 4, 3, 1))
    return gl.convert_layout(value.reshape([shape.warps, shape.dim, shape.tokens]), LAYOUT, True)


@gluon.jit
def scores_of(queries, keys, factor, shape: gl.constexpr, LAYOUT: gl.constexpr):
    """Scores [warps, rows, tokens]: both halves of the queries times keys, times a factor of each row."""
    WARPS: gl.constexpr = shape.warps
    INT8: gl.constexpr = shape.kind == "int8"
    zeros = gl.full([WARPS, 2 * shape.rows, shape.tokens], 0, gl.int32 if INT8 else gl.float32, product_layout(WARPS))
    both = mma_v2(queries, keys, zeros)  # [WARPS, 2 ROWS, DIM] @ [WARPS, DIM, TOKENS]
    near, far = both.reshape([WARPS, 2, shape.rows, shape.tokens]).permute((0, 2, 3, 1)).split()
    total = near.to(gl.float32) + far.to(gl.float32) * (1.0 / REST if INT8 else 1.0)
    return gl.convert_layout(total, LAYOUT, True) * factor


@gluon.jit
def visible_scores(scores, position, last, end, shape: gl.constexpr):
    """Scores under the cap; -inf for positions that the query at `last` does not see, or that are not below `end`."""
    if shape.cap > 0:  # cap * tanh(x / cap), of x = scores / log2(e)
        scores = shape.cap * LOG2E * (1 - 2 / (1 + gl.exp2(scores * (2 / shape.cap))))
    visible = position < end
    if shape.chunked:
        visible &= position >= last // shape.window * shape.window
    elif shape.window:
        visible &= position > last - shape.window
    return gl.where(visible, scores, float("-inf"))


@gluon.jit
def sum_of_warps(acc, m, total, shape: gl.constexpr):
    """What all warps have, from that of each: sums [rows, dim] of acc [warps, dim, rows], their maxima and totals
    [rows] of m and total [warps, rows]. Values of a head are in order then, see `values_of`."""
    WARPS: gl.constexpr = shape.warps
    WIDTH: gl.constexpr = shape.width
    LAYOUT: gl.constexpr = gl.BlockedLayout([WARPS, 1, 1], [1, 1, 32], [1, WARPS, 1], [2, 1, 0])
    parts = acc.reshape([WARPS, shape.dim // (8 * WIDTH), WIDTH, 8, shape.rows]).permute((0, 4, 1, 3, 2))
    each = gl.convert_layout(parts.reshape([WARPS, shape.rows, shape.dim]), LAYOUT)
    m = gl.convert_layout(m, gl.SliceLayout(2, LAYOUT))
    total = gl.convert_layout(total, gl.SliceLayout(2, LAYOUT))
    most = gl.max(m, 0)  # [ROWS]
    split_at = gl.exp2(m - gl.where(most == float("-inf"), 0.0, most).expand_dims(0))  # [WARPS, ROWS]
    return gl.sum(each * split_at.expand_dims(2), 0), most, gl.sum(total * split_at, 0)


@gluon.jit
def store_split(result, m, total, place, partial, heads, shape: gl.constexpr):
    """A program's result [rows, dim], not divided yet, with its maxima and totals [rows], to `partial`; `place` is the
    sequence, the head of keys and the split."""
    sequence, head, split = place
    ROWS: gl.constexpr = gl.SliceLayout(1, result.type.layout)
    row = gl.arange(0, shape.rows, ROWS)
    at = gl.arange(0, shape.dim, gl.SliceLayout(0, result.type.layout)).expand_dims(0)
    split_at = ((sequence * heads + head) * shape.group + row) * shape.splits + split
    gl.store(partial.maxima + split_at, gl.convert_layout(m, ROWS), mask=row < shape.group)
    gl.store(partial.totals + split_at, gl.convert_layout(total, ROWS), mask=row < shape.group)
    target = (partial.outputs + split_at * shape.dim).expand_dims(1) + at
    gl.store(target, result, mask=(row < shape.group).expand_dims(1) & (at >= 0))


@gluon.jit
def divided(result, m, total, sinks, head, shape: gl.constexpr):
    """The result [rows, dim] of a program that has all that its queries see, from what `store_split` takes."""
    ROWS: gl.constexpr = gl.SliceLayout(1, result.type.layout)
    m, total = gl.convert_layout(m, ROWS), gl.convert_layout(total, ROWS)
    if sinks is not None:
        row = gl.arange(0, shape.rows, ROWS)
        sink = gl.load(sinks + head * shape.group + row, mask=row < shape.group, other=0.0)  # [rows]
        total += gl.exp2(sink * LOG2E - m)
    return result / total.expand_dims(1)


@gluon.jit
def attend(
    q, cache, sinks, out, quantized, ordered, partial, scale, place_of, seen, shape: gl.constexpr, PDL: gl.constexpr
):
    """What `decode_mma_kernel` says, for a program that has blocks.

    place_of is the sequence, the head of keys and the split, seen its first block, the one after its last, the query's
    position, and how many programs of the head have blocks.
    """
    DIM: gl.constexpr = shape.dim
    WARPS: gl.constexpr = shape.warps
    ROWS: gl.constexpr = shape.rows
    BLOCK: gl.constexpr = shape.block_n
    TOKENS: gl.constexpr = shape.tokens
    STAGES: gl.constexpr = shape.stages
    DYNAMIC: gl.constexpr = shape.scales == "dynamic"
    S: gl.constexpr = product_layout(WARPS)
    Q_IN: gl.constexpr = gl.DotOperandLayout(0, S, shape.width)
    K_IN: gl.constexpr = gl.DotOperandLayout(1, S, shape.width)
    V_IN: gl.constexpr = gl.DotOperandLayout(0, S, 2)
    P_IN: gl.constexpr = gl.DotOperandLayout(1, S, 2)
    P: gl.constexpr = weights_layout(WARPS, ROWS, TOKENS)
    OF_ROW: gl.constexpr = gl.SliceLayout(2, P)
    OF_TOKEN: gl.constexpr = gl.SliceLayout(1, P)
    OF_WARP: gl.constexpr = gl.SliceLayout(1, OF_ROW)
    sequence, head, split = place_of
    first, stop, last, used = seen
    end = gl.minimum(stop * BLOCK, last + 1)  # of the positions
    ring = ring_of(cache, shape)
    for early in range(STAGES - 1):
        if (first + early + 1) * BLOCK <= gl.minimum(end, last):
            fetch(ring, cache, sequence, head, early, (first + early) * BLOCK, end, shape)
        async_copy.commit_group()
    if DYNAMIC:
        now = scales_of(cache, sequence, head, first * BLOCK, gl.minimum(end, last), shape)
        after = scales_of(cache, sequence, head, (first + 1) * BLOCK, gl.minimum(end, last), shape)
    if PDL:
        gdc_wait()
    own = last // BLOCK  # the block whose last row the kernel before may have written
    if (end > last) & (own >= first) & (own < first + STAGES - 1):
        fetch(ring, cache, sequence, head, own - first, own * BLOCK, end, shape)
        async_copy.commit_group()
        if DYNAMIC:
            now = scales_of(cache, sequence, head, first * BLOCK, end, shape)
            after = scales_of(cache, sequence, head, (first + 1) * BLOCK, end, shape)
    queries, step = queries_of(q, sequence, head, shape, Q_IN)
    queries, _ = gl.broadcast(queries, gl.full([WARPS, 1, 1], 0, queries.dtype, Q_IN))
    step, _ = gl.broadcast(step, gl.full([WARPS, 1], 0.0, gl.float32, step.type.layout))
    factor = (gl.convert_layout(step, OF_ROW) * (scale * head_scale_of(cache.k_scales, head, shape))).expand_dims(2)
    m = gl.full([WARPS, ROWS], float("-inf"), gl.float32, OF_ROW)
    total = gl.full([WARPS, ROWS, TOKENS], 0.0, gl.float32, P)
    acc = gl.full([WARPS, DIM, ROWS], 0.0, gl.float32, S)
    warp = gl.arange(0, WARPS, OF_WARP).expand_dims(1).expand_dims(2)
    place = gl.arange(0, TOKENS, gl.SliceLayout(0, OF_TOKEN)).expand_dims(0).expand_dims(1) + warp * TOKENS
    unit = gl.full([WARPS], MIN_SCALE, gl.float32, OF_WARP)  # of the sums
    if not DYNAMIC:
        unit = unit * 0 + head_scale_of(cache.v_scales, head, shape)
    for i in range(first, stop):
        slot = (i - first) % STAGES
        if i == own:
            async_copy.wait_group(0)
        else:
            async_copy.wait_group(STAGES - 2)
        keys = keys_of(ring, slot, shape, K_IN)  # [WARPS, DIM, TOKENS]
        values = values_of(ring, slot, shape, V_IN)  # [WARPS, DIM, TOKENS]
        if DYNAMIC:
            k_scale, v_scale = of_scores(now[0], shape, P), of_scores(now[1], shape, P)  # [WARPS, ROWS, TOKENS] each
            coming = scales_of(cache, sequence, head, (i + 2) * BLOCK, end, shape)
        ahead = i + STAGES - 1
        if ahead < stop:
            fetch(ring, cache, sequence, head, (ahead - first) % STAGES, ahead * BLOCK, end, shape)
        async_copy.commit_group()
        scores = scores_of(queries, keys, factor, shape, P)  # [WARPS, ROWS, TOKENS]
        if DYNAMIC:
            scores *= k_scale
        scores = visible_scores(scores, place + i * BLOCK, last, end, shape)
        most = gl.maximum(m, gl.max(scores, 2))  # [WARPS, ROWS]
        shift = gl.where(most == float("-inf"), 0.0, most)
        p = gl.exp2(scores - shift.expand_dims(2))
        keep = gl.exp2(m - shift)
        m = most
        total = total * keep.expand_dims(2) + p
        if DYNAMIC:  # as in `weighted_by_scales`
            larger = gl.maximum(unit, gl.convert_layout(gl.max(now[1], 1) * shape.unit, OF_WARP))  # [WARPS]
            p *= v_scale * (1.0 / larger).expand_dims(1).expand_dims(2)
            keep *= (unit / larger).expand_dims(1)
            unit = larger
            now, after = after, coming
        acc *= gl.convert_layout(keep, gl.SliceLayout(1, S)).expand_dims(1)
        near = p.to(gl.float16)
        weights = gl.convert_layout(near.permute((0, 2, 1)), P_IN, True)
        acc = mma_v2(values, weights, acc)  # [WARPS, DIM, TOKENS] @ [WARPS, TOKENS, ROWS]
        if shape.kind == "q8_0":  # whose values are rounded already
            rest = (p - near.to(gl.float32)).to(gl.float16)
            acc = mma_v2(values, gl.convert_layout(rest.permute((0, 2, 1)), P_IN, True), acc)
    acc *= gl.convert_layout(unit, gl.SliceLayout(1, gl.SliceLayout(2, S))).expand_dims(1).expand_dims(2)
    result, most, whole = sum_of_warps(acc, m, gl.sum(total, 2), shape)
    alone = used == 1
    if partial is None:
        alone = True
    if alone:
        value = divided(result, most, whole, sinks, head, shape)
        store_result(value, out, quantized, ordered, (sequence, head), cache.heads, shape)
    elif partial is not None:
        store_split(result, most, whole, (sequence, head, split), partial, cache.heads, shape)
        barrier()
        one = partial.counter + sequence * cache.heads + head
        if gl.atomic_add(one, 1, sem="acq_rel") == used - 1:
            gl.store(one, 0)
            combine(partial, sinks, out, quantized, ordered, (sequence, head), used, cache.heads, shape)


@gluon.jit
def decode_mma_kernel(
    q, cache, positions, sinks, out, quantized, ordered, partial, scale, shape: gl.constexpr,
    num_warps: gl.constexpr, PDL: gl.constexpr,
):
    """Program (sequence, K/V head, split) attends to its part of the blocks, for all query heads of the K/V head.

    q is float32 [sequences, heads * dim], cache a PagedCache, shape a DecodeShape. The result, with `sinks`, float32
    [heads] or None, in its totals, is float32 in `out`, or in `quantized` and `ordered` as `combine` says; the others
    are None.
    Where programs split_at a head, partial is a CountedAttention. Blocks that earlier steps have written are
    asked for before an earlier kernel's results are waited for.
    """
    if PDL:
        gdc_launch_dependents()
    sequence, head, split = gl.program_id(0).to(gl.int64), gl.program_id(1), gl.program_id(2)
    last = gl.load(positions + sequence)
    earliest, blocks = visible_blocks(last, shape)
    used = gl.minimum(gl.cdiv(blocks, shape.least), shape.splits)
    if split < used:  # others end here, and leave their place to those of the next kernel
        first, stop = earliest + split * blocks // used, earliest + (split + 1) * blocks // used
        seen = first, stop, last, used
        attend(q, cache, sinks, out, quantized, ordered, partial, scale, (sequence, head, split), seen, shape, PDL)
