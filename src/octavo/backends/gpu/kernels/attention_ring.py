"""Shared memory for keys and values of decoding attention that are on their way, in Gluon: each thread copies 16 bytes
at a time, and nothing waits until a block is wanted."""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.backends.gpu.kernels.gluon_names import copy_async
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


class Ring(NamedTuple):
    """Shared memory for blocks that are on their way, [stages, warps, tokens, ...].

    k, v                codes or floats
    k_scales, v_scales  of codes, [..., dim / 32] of q8_0; nobody reads them where there are none
    """

    k: Any
    v: Any
    k_scales: Any
    v_scales: Any


@gluon.jit
def ring_of(cache, shape: gl.constexpr):
    """An empty Ring."""
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
    elif shape.scales == "dynamic":
        ROWS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        k_scales = gl.allocate_shared_memory(gl.float32, [STAGES, WARPS, TOKENS], ROWS)
        v_scales = gl.allocate_shared_memory(gl.float32, [STAGES, WARPS, TOKENS], ROWS)
    return Ring(k, v, k_scales, v_scales)


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
    elif shape.scales == "dynamic":
        ROWS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
        row, seen = places(cache, sequence, start, stop, shape, ROWS)
        place = (row // PAGE * cache.heads + head) * PAGE + row % PAGE
        copy_async(ring.k_scales.index(slot), cache.k_scales + place, mask=seen)
        copy_async(ring.v_scales.index(slot), cache.v_scales + place, mask=seen)
