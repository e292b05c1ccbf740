"""Attention: one launch for prompts, two for sequences of one token; a step may have both.

Where keys are values too, another kernel takes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import triton

from octavo.backends.gpu.attention import attention_tiles, decode_mma_launch, prefill_hopper_launch
from octavo.backends.gpu.attention.attention_arguments import (
    AttentionShape,
    PagedCache,
    PartialAttention,
    pages_seen,
    partial_attention,
)
from octavo.backends.gpu.attention.decode_kernel import combine_kernel, decode_kernel
from octavo.backends.gpu.attention.kernel import prefill_kernel
from octavo.backends.gpu.attention.mla_kernel import latent_kernel
from octavo.backends.gpu.attention.rotation import rotate_heads_kernel
from octavo.backends.gpu.launch.arguments import Matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, Cache
from octavo.backends.gpu.matmul.mmq.mmq_shapes import INT8_MAX_TOKENS
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.rotation import block_of

LOG2E = 1.4426950408889634
MANY_ROWS = 64
"""As many as the largest tile where keys are values too."""


def decodes(q: torch.Tensor, starts: torch.Tensor, pages: torch.Tensor) -> int:
    """Sequences of one token, which are the first ones."""
    return len(q) if len(q) == len(pages) else len(pages) + 1 - len(starts)


def quantizes(c: Context, q: torch.Tensor, pages: torch.Tensor, out: Activation) -> bool:
    """Whether `attend` can give its result as `out` itself: one token a sequence, no padding to write, and no float16
    but those in order."""
    floats = not out.is_q8_1 or out.tokens > INT8_MAX_TOKENS
    if c.deterministic or out.is_planar or (floats and "plain" in c.wanted):
        return False
    return out.k == out.kp and out.k // q.shape[1] % 32 == 0 and len(q) == len(pages)


def attend(c: Context, inputs: Sequence[Any], attrs: Mapping[str, Any], out: torch.Tensor | Activation) -> list[Launch]:
    """out [T, H * D] from the inputs and attributes of op `attention`."""
    q, keys, values, positions, starts, pages, *sinks = inputs
    cache = _paged(keys, values, pages)
    scale, names = attrs["scale"] * LOG2E, ("window", "cap", "reach")
    limits = {name: attrs[name] for name in names if attrs.get(name)}
    if keys.kind:
        limits |= {"kind": keys.kind, "scales": keys.scaling}
    if limits.get("window", 0) < 0:
        limits |= {"window": -limits["window"], "chunked": True}
    sink = sinks[0] if sinks else None
    if attrs.get("alibi"):
        heads = 1 << q.shape[1].bit_length() - 1
        limits |= {"alibi": attrs["alibi"] / heads, "sloped": heads}
    if keys is values:
        limits["value_dim"] = attrs.get("value_dim", 0) or q.shape[2]
    n, shared = decodes(q, starts, pages), "value_dim" in limits
    calls, prompts = list[Launch](), _prefill_latent if shared else _prefill
    apart = shared and bool(keys.kind) and CACHE_FORMATS[keys.kind].rotated
    if apart:
        rotated = c.shared("rotated queries", q.numel(), torch.float32).view(q.shape)
        calls.append(_rotate(c, q, rotated, q.shape[2], back=False))
        q = rotated
    if n and c.deterministic:
        assert not isinstance(out, Activation)
        each = torch.arange(n + 1, dtype=torch.int32, device=q.device)
        calls += prompts(c, q[:n], cache._replace(pages=pages[:n]), positions, each, sink, scale, limits, out)
    elif n:
        calls += (_decode_latent if shared else _decode)(c, q[:n], cache, positions, sink, scale, limits, out)
    if n < len(q):
        assert not isinstance(out, Activation)
        rest = cache._replace(pages=pages[n:])
        calls += prompts(c, q, rest, positions, starts, sink, scale, limits, out)
    first = 0 if c.deterministic else n
    if apart and first < len(q):
        assert not isinstance(out, Activation)
        result = out[first:].view(len(q) - first, q.shape[1], limits["value_dim"])
        calls.append(_rotate(c, result, result, q.shape[2], back=True))
    return calls


def _rotate(c: Context, x: torch.Tensor, out: torch.Tensor, dim: int, *, back: bool) -> Launch:
    """out [T, heads, size] = x rotated, or rotated `back`: the first values of heads that have `dim`."""
    tokens, heads, size = x.shape
    return c.launch(
        rotate_heads_kernel, (tokens, heads), Matrix(x, x.stride(0)), Matrix(out, out.stride(0)), SIZE=size,
        BLOCK=triton.next_power_of_2(size), DIM=dim, BACK=back, warps=1, exact=c.deterministic,
    )


def _paged(keys: Cache, values: Cache, pages: torch.Tensor) -> PagedCache:
    return PagedCache(keys.data, values.data, keys.scales, values.scales, keys.shape[1], pages, pages.shape[1])


def _prefill(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor,
    sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any], out: torch.Tensor,
) -> list[Launch]:
    portable = partial(_portable_prefill, c, q, cache, positions, starts, sinks, scale, limits, out)
    if prefill_hopper_launch.takes_8bit(c, q, cache, sinks, scale, limits):
        return prefill_hopper_launch.prefill_8bit(
            c, q, cache, positions, starts, scale, limits, out, otherwise=portable)
    if c.deterministic or not prefill_hopper_launch.takes(c, q, cache, sinks, scale, limits):
        return [portable()]
    return prefill_hopper_launch.prefill(c, q, cache, positions, starts, scale, limits, out, otherwise=portable)


def _portable_prefill(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor,
    sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any], out: torch.Tensor,
) -> Launch:
    tokens, heads, dim = q.shape
    block = triton.next_power_of_2(dim)
    tile = attention_tiles.prefill(block, c.target.arch, cache.k.dtype == torch.float32, limits.get("kind", ""))
    shape = AttentionShape(
        dim, block, heads // cache.heads, tile.block_m, block_n=tile.block_n, precision=tile.precision,
        own_scales=c.deterministic and limits.get("scales") == "dynamic", **limits,
    )
    return c.launch(
        prefill_kernel, (-(-tokens // tile.block_m), heads, len(starts) - 1), Matrix(q, q.stride(0)), cache, positions,
        starts, sinks, Matrix(out, out.stride(0)), scale, shape=shape, warps=tile.warps, stages=2,
        exact=c.deterministic,
    )


def _decode(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, sinks: torch.Tensor | None, scale: float,
    limits: Mapping[str, Any], out: torch.Tensor | Activation,
) -> list[Launch]:
    portable = partial(_portable_decode, c, q, cache, positions, sinks, scale, limits, out)
    shape = decode_mma_launch.shape_of(c, q, cache, limits)
    if shape is None:
        return portable()
    return [decode_mma_launch.decode(c, q, cache, positions, sinks, scale, shape, out, otherwise=portable)]


def _portable_decode(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, sinks: torch.Tensor | None, scale: float,
    limits: Mapping[str, Any], out: torch.Tensor | Activation,
) -> list[Launch]:
    """A second launch joins the splits, unless there is one, and nothing to quantize."""
    tokens, heads, dim = q.shape
    block, group = triton.next_power_of_2(dim), heads // cache.heads
    splits = attention_tiles.splits(tokens, cache.heads, pages_seen(cache, limits), c.target.arch)
    given = Matrix(out, out.stride(0)) if isinstance(out, torch.Tensor) and splits == 1 else None
    partials = partial_attention(c, tokens * heads, splits, block) if given is None else None
    places = (None if given is None else sinks, given, partials)
    ahead = c.target.pdl or c.target.arch == "interpreter"
    tile = attention_tiles.decode(block, group, c.target.arch, cache.k.dtype == torch.float32, limits.get("kind", ""))
    shape = AttentionShape(
        dim, block, group, tile.block_m, splits, ahead, block_n=tile.block_n, precision=tile.precision, **limits
    )
    first = c.launch(
        decode_kernel, (tokens, cache.heads, splits), Matrix(q, q.stride(0)), cache, positions, *places, scale,
        shape=shape, warps=tile.warps, stages=2,
    )
    return [first] if partials is None else [first, _combine(c, partials, positions, sinks, heads, shape, out, tokens)]


def _combine(
    c: Context, partials: PartialAttention, positions: torch.Tensor, sinks: torch.Tensor | None, heads: int,
    shape: AttentionShape, out: torch.Tensor | Activation, tokens: int,
) -> Launch:
    """Joins the splits of each sequence's token and head."""
    if isinstance(out, Activation):
        places: tuple[Any, ...] = None, *c.wanted_of(out)
    else:
        places = Matrix(out, out.stride(0)), None, None
    parts = shape.block_d // shape.part if shape.part else 1
    return c.launch(
        combine_kernel, (tokens, heads, parts), partials, positions, sinks, *places, heads, shape=shape, warps=4
    )


def _prefill_latent(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor,
    sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any], out: torch.Tensor,
) -> list[Launch]:
    rows = len(q) * (q.shape[1] // cache.heads)
    shape, tile = _latent_shape(c, q, cache, MANY_ROWS if c.deterministic else rows, 1, limits)
    return [c.launch(
        latent_kernel, (-(-rows // shape.block_m), cache.heads, len(starts) - 1), Matrix(q, q.stride(0)), cache,
        positions, starts, sinks, Matrix(out, out.stride(0)), None, scale, shape=shape,
        ASM=c.target.asm, warps=tile.warps, stages=tile.stages, exact=c.deterministic,
    )]


def _decode_latent(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, sinks: torch.Tensor | None, scale: float,
    limits: Mapping[str, Any], out: torch.Tensor | Activation,
) -> list[Launch]:
    (tokens, heads, _), group = q.shape, q.shape[1] // cache.heads
    tiles = -(-group // _latent_tile(c, cache, group, limits).block_m)
    splits = attention_tiles.latent_splits(tokens * cache.heads * tiles, pages_seen(cache, limits), c.target.arch)
    shape, tile = _latent_shape(c, q, cache, group, splits, limits)
    partials = partial_attention(c, tokens * heads, splits, shape.block_d)
    first = c.launch(
        latent_kernel, (tiles, splits * cache.heads, tokens), Matrix(q, q.stride(0)), cache, positions, None, None,
        None, partials, scale, shape=shape, ASM=c.target.asm, warps=tile.warps, stages=tile.stages,
    )
    part = max(64, block_of(shape.dim)) if shape.rotated else 64
    summed = replace(shape, block_r=0, part=min(part, shape.block_d))
    return [first, _combine(c, partials, positions, sinks, heads, summed, out, tokens)]


def _latent_shape(
    c: Context, q: torch.Tensor, cache: PagedCache, rows: int, splits: int, limits: Mapping[str, Any]
) -> tuple[AttentionShape, attention_tiles.AttentionTile]:
    """Where keys are values too: rows of a tile are pairs of a token and a head."""
    _, heads, dim = q.shape
    tile, value_dim = _latent_tile(c, cache, rows, limits), limits["value_dim"]
    return AttentionShape(
        dim, triton.next_power_of_2(value_dim), heads // cache.heads, tile.block_m, splits, block_n=tile.block_n,
        block_r=max(16, triton.next_power_of_2(dim - value_dim)), part=tile.part, precision=tile.precision,
        ahead=tile.ahead, own_scales=c.deterministic and limits.get("scales") == "dynamic", **limits,
    ), tile


def _latent_tile(
    c: Context, cache: PagedCache, rows: int, limits: Mapping[str, Any]
) -> attention_tiles.AttentionTile:
    return attention_tiles.latent(rows, c.target.arch, cache.k.dtype == torch.float32, limits.get("kind", ""))
