"""Attention: one launch for prompts, two for sequences of one token; a step may have both.

Where keys are values too, another kernel takes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import triton

from octavo.backends.gpu import dispatch, prefill_hopper
from octavo.backends.gpu.arguments import Constant, Matrix, Pointer
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels.attention import prefill_kernel
from octavo.backends.gpu.kernels.attention_decode import combine_kernel, decode_kernel
from octavo.backends.gpu.kernels.attention_latent import latent_kernel
from octavo.backends.gpu.launch import Launch
from octavo.backends.gpu.values import Activation, Cache, parts
from octavo.graph.node import PAGE_SIZE

LOG2E = 1.4426950408889634
MANY_ROWS = 64
"""As many as the largest tile where keys are values too."""


class PagedCache(NamedTuple):
    """Keys and values [rows, heads, dim] of all sequences, in pages.

    k, v                floats, or bytes of codes
    k_scales, v_scales  of codes: float16 [rows, heads, dim / 32] of q8_0, dynamic float32 [pages, heads, PAGE_SIZE] or
                        static float32 [heads] of int8 and fp8; None for floats
    heads               of keys and values
    pages               int32 [sequences, width], the pages of each sequence
    width               most pages of a sequence
    """

    k: Pointer
    v: Pointer
    k_scales: Pointer | None
    v_scales: Pointer | None
    heads: int
    pages: Pointer
    width: int


class PartialAttention(NamedTuple):
    """Results of programs that share a sequence, float32.

    outputs         [sequences, heads, splits, block_d], not yet divided by `totals`
    maxima, totals  [sequences, heads, splits], of scores and of their weights
    """

    outputs: Pointer
    maxima: Pointer
    totals: Pointer


@dataclass(frozen=True)
class AttentionShape(Constant):
    """What kernels of attention are compiled for.

    dim        values of a head
    block_d    the power of two that holds them
    group      query heads that share a head of keys and values
    block_m    queries of a program: tokens of a prompt, or when decoding the query heads of a group, padded
    splits     when decoding, programs that share a sequence
    ahead      when decoding, read the first block before waiting for the kernel before
    window     positions that a query sees, 0 for all
    cap        scores x become cap * tanh(x / cap), 0: they stay
    chunked    the window is fixed: a query sees the positions of its own
    precision  as in an AttentionTile
    block_n    positions of a block, which is a page or a part of one
    reach      positions after its own that a query sees too, up to the last of its sequence
    value_dim  where keys are values too, how many values of a key are; block_d then holds only these
    block_r    the power of two, at least 16, that holds the others
    part       values of queries and keys that are multiplied at a time, or whose splits are summed; 0: all
    kind       of a cache of codes: "q8_0", "int8" or "fp8"
    scales     "dynamic" or "static" where heads have scales
    """

    dim: int
    block_d: int
    group: int
    block_m: int
    splits: int = 1
    ahead: bool = False
    window: int = 0
    cap: float = 0.0
    chunked: bool = False
    precision: str | None = None
    block_n: int = PAGE_SIZE
    reach: int = 0
    value_dim: int = 0
    block_r: int = 0
    part: int = 0
    kind: str = ""
    scales: str = ""

    @property
    def unit(self) -> float:
        """What scales are multiplied with: e4m3 numbers become float16 over 256."""
        return 256.0 if self.kind == "fp8" else 1.0

    @property
    def parts(self) -> int:
        """Blocks of a page."""
        return PAGE_SIZE // self.block_n


def decodes(q: torch.Tensor, starts: torch.Tensor, pages: torch.Tensor) -> int:
    """Sequences of one token, which are the first ones."""
    return len(q) if len(q) == len(pages) else len(pages) + 1 - len(starts)


def quantizes(c: Context, q: torch.Tensor, pages: torch.Tensor, out: Activation) -> bool:
    """Whether `attend` can give its result as q8_1 itself: one token a sequence, and no padding to write."""
    if c.deterministic:
        return False
    fits = out.tokens <= dispatch.INT8_MAX_TOKENS and out.k == out.kp and out.k // q.shape[1] % 32 == 0
    return fits and len(q) == len(pages)


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
    if keys is values:
        limits["value_dim"] = attrs.get("value_dim", 0) or q.shape[2]
    n, shared = decodes(q, starts, pages), "value_dim" in limits
    calls, prompts = list[Launch](), _prefill_latent if shared else _prefill
    if n and c.deterministic:
        assert not isinstance(out, Activation)
        each = torch.arange(n + 1, dtype=torch.int32, device=q.device)
        calls.append(prompts(c, q[:n], cache._replace(pages=pages[:n]), positions, each, sink, scale, limits, out))
    elif n:
        calls += (_decode_latent if shared else _decode)(c, q[:n], cache, positions, sink, scale, limits, out)
    if n < len(q):
        assert not isinstance(out, Activation)
        rest = cache._replace(pages=pages[n:])
        calls.append(prompts(c, q, rest, positions, starts, sink, scale, limits, out))
    return calls


def _paged(keys: Cache, values: Cache, pages: torch.Tensor) -> PagedCache:
    return PagedCache(keys.data, values.data, keys.scales, values.scales, keys.shape[1], pages, pages.shape[1])


def _prefill(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor,
    sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any], out: torch.Tensor,
) -> Launch:  # fmt: skip
    portable = partial(_portable_prefill, c, q, cache, positions, starts, sinks, scale, limits, out)
    if c.deterministic or not prefill_hopper.takes(c, q, cache.k, cache.pages, sinks, scale, limits):
        return portable()
    return prefill_hopper.prefill(
        c, q, (cache.k, cache.v), cache.pages, positions, starts, scale, out, otherwise=portable
    )


def _portable_prefill(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor,
    sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any], out: torch.Tensor,
) -> Launch:  # fmt: skip
    tokens, heads, dim = q.shape
    block = triton.next_power_of_2(dim)
    tile = dispatch.prefill(block, c.target.arch, cache.k.dtype == torch.float32, codes=bool(limits.get("scales")))
    shape = AttentionShape(
        dim, block, heads // cache.heads, tile.block_m, block_n=tile.block_n, precision=tile.precision, **limits
    )
    return c.launch(
        prefill_kernel, (-(-tokens // tile.block_m), heads, len(starts) - 1), Matrix(q, q.stride(0)), cache, positions,
        starts, sinks, Matrix(out, out.stride(0)), scale, shape=shape, warps=tile.warps, stages=2,
    )  # fmt: skip


def _decode(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, sinks: torch.Tensor | None, scale: float,
    limits: Mapping[str, Any], out: torch.Tensor | Activation,
) -> list[Launch]:  # fmt: skip
    tokens, heads, dim = q.shape
    block, group = triton.next_power_of_2(dim), heads // cache.heads
    splits = dispatch.splits(tokens, cache.heads, _pages_seen(cache, limits), c.target.arch)
    partial = _partial(c, tokens * heads, splits, block)
    ahead = c.target.pdl or c.target.arch == "interpreter"
    tile = dispatch.decode(
        block, group, c.target.arch, cache.k.dtype == torch.float32, codes=bool(limits.get("scales"))
    )
    shape = AttentionShape(
        dim, block, group, tile.block_m, splits, ahead, block_n=tile.block_n, precision=tile.precision, **limits
    )
    first = c.launch(
        decode_kernel, (tokens, cache.heads, splits), Matrix(q, q.stride(0)), cache, positions, partial, scale,
        shape=shape, warps=tile.warps, stages=2,
    )  # fmt: skip
    return [first, _combine(c, partial, positions, sinks, heads, shape, out, tokens)]


def _combine(
    c: Context, partial: PartialAttention, positions: torch.Tensor, sinks: torch.Tensor | None, heads: int,
    shape: AttentionShape, out: torch.Tensor | Activation, tokens: int,
) -> Launch:  # fmt: skip
    """Joins the splits of each sequence's token and head."""
    places = (None, out.q8_1) if isinstance(out, Activation) else (Matrix(out, out.stride(0)), None)
    parts = shape.block_d // shape.part if shape.part else 1
    return c.launch(
        combine_kernel, (tokens, heads, parts), partial, positions, sinks, *places, heads, shape=shape, warps=4
    )


def _prefill_latent(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor,
    sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any], out: torch.Tensor,
) -> Launch:  # fmt: skip
    rows = len(q) * (q.shape[1] // cache.heads)
    shape, tile = _latent_shape(c, q, cache, MANY_ROWS if c.deterministic else rows, 1, limits)
    return c.launch(
        latent_kernel, (-(-rows // shape.block_m), cache.heads, len(starts) - 1), Matrix(q, q.stride(0)), cache,
        positions, starts, sinks, Matrix(out, out.stride(0)), None, scale, shape=shape, warps=tile.warps,
        stages=tile.stages,
    )  # fmt: skip


def _decode_latent(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, sinks: torch.Tensor | None, scale: float,
    limits: Mapping[str, Any], out: torch.Tensor | Activation,
) -> list[Launch]:  # fmt: skip
    (tokens, heads, _), group = q.shape, q.shape[1] // cache.heads
    tiles = -(-group // _latent_tile(c, cache, group).block_m)
    splits = dispatch.latent_splits(tokens * cache.heads * tiles, _pages_seen(cache, limits), c.target.arch)
    shape, tile = _latent_shape(c, q, cache, group, splits, limits)
    partial = _partial(c, tokens * heads, splits, shape.block_d)
    first = c.launch(
        latent_kernel, (tiles, splits * cache.heads, tokens), Matrix(q, q.stride(0)), cache, positions, None, None,
        None, partial, scale, shape=shape, warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
    summed = replace(shape, dim=shape.value_dim, value_dim=0, block_r=0, part=min(64, shape.block_d))
    return [first, _combine(c, partial, positions, sinks, heads, summed, out, tokens)]


def _latent_shape(
    c: Context, q: torch.Tensor, cache: PagedCache, rows: int, splits: int, limits: Mapping[str, Any]
) -> tuple[AttentionShape, dispatch.AttentionTile]:  # fmt: skip
    """Where keys are values too: rows of a tile are pairs of a token and a head."""
    _, heads, dim = q.shape
    tile, value_dim = _latent_tile(c, cache, rows), limits["value_dim"]
    return AttentionShape(
        dim, triton.next_power_of_2(value_dim), heads // cache.heads, tile.block_m, splits, block_n=tile.block_n,
        block_r=max(16, triton.next_power_of_2(dim - value_dim)), part=tile.part, precision=tile.precision, **limits,
    ), tile  # fmt: skip


def _latent_tile(c: Context, cache: PagedCache, rows: int) -> dispatch.AttentionTile:
    return dispatch.latent(rows, c.target.arch, cache.k.dtype == torch.float32, codes=cache.k_scales is not None)


def _pages_seen(cache: PagedCache, limits: Mapping[str, Any]) -> int:
    """The most pages that a token sees."""
    return min(cache.width, -(-limits["window"] // PAGE_SIZE) + 1) if "window" in limits else cache.width


def _partial(c: Context, rows: int, splits: int, block: int) -> PartialAttention:
    """Memory for `splits` of the results [rows, block]."""
    sums = rows * splits
    memory = c.shared("partial", sums * (block + 2), torch.float32)
    return PartialAttention(*parts(memory, (sums * block, sums, sums)))
