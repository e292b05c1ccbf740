# mypy: ignore-errors
"""Shared memory for keys and values of decoding attention that are on their way, in Gluon: each thread copies 16 bytes
at a time, and nothing waits until a block is wanted."""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.backends.gpu.compile.gluon_names import copy_async
from octavo.graph.node import PAGE_SIZE

PAGE = gl.constexpr(PAGE_SIZE)


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
