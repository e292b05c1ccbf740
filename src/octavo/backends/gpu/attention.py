"""Attention: one launch for prompts, two for sequences of one token; a step may have both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from octavo.backends.gpu import dispatch
from octavo.backends.gpu.arguments import Constant, Matrix, Pointer
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels.attention import prefill_kernel
from octavo.backends.gpu.kernels.attention_decode import combine_kernel, decode_kernel
from octavo.backends.gpu.launch import Launch
from octavo.backends.gpu.values import Activation, Cache, parts
from octavo.graph.node import PAGE_SIZE

LOG2E = 1.4426950408889634


class PagedCache(NamedTuple):
    """Keys and values [rows, heads, dim] of all sequences, in pages.

    k, v                floats, or int8 codes
    k_scales, v_scales  float16 [rows, heads, dim / 32] of codes; None for floats
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

    @property
    def parts(self) -> int:
        """Blocks of a page."""
        return PAGE_SIZE // self.block_n


def decodes(q: torch.Tensor, starts: torch.Tensor, pages: torch.Tensor) -> int:
    """Sequences of one token, which are the first ones."""
    return len(q) if len(q) == len(pages) else len(pages) + 1 - len(starts)


def quantizes(q: torch.Tensor, pages: torch.Tensor, out: Activation) -> bool:
    """Whether `attend` can give its result as q8_1 itself: one token a sequence, and no padding to write."""
    return len(q) == len(pages) and out.tokens <= dispatch.INT8_MAX_TOKENS and out.k == out.kp and q.shape[2] % 32 == 0


def attend(c: Context, inputs: Sequence[Any], attrs: Mapping[str, Any], out: torch.Tensor | Activation) -> list[Launch]:
    """out [T, H * D] from the inputs and attributes of op `attention`."""
    q, keys, values, positions, starts, pages, *sinks = inputs
    cache = _paged(keys, values, pages)
    scale, names = attrs["scale"] * LOG2E, ("window", "cap", "reach")
    limits = {name: attrs[name] for name in names if attrs.get(name)}
    if limits.get("window", 0) < 0:
        limits |= {"window": -limits["window"], "chunked": True}
    sink = sinks[0] if sinks else None
    n = decodes(q, starts, pages)
    calls = _decode(c, q[:n], cache, positions, sink, scale, limits, out) if n else []
    if n < len(q):
        assert not isinstance(out, Activation)
        rest = cache._replace(pages=pages[n:])
        calls.append(_prefill(c, q, rest, positions, starts, sink, scale, limits, out))
    return calls


def _paged(keys: Cache, values: Cache, pages: torch.Tensor) -> PagedCache:
    return PagedCache(keys.data, values.data, keys.scales, values.scales, keys.shape[1], pages, pages.shape[1])


def _prefill(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor,
    sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any], out: torch.Tensor,
) -> Launch:  # fmt: skip
    tokens, heads, dim = q.shape
    block = triton.next_power_of_2(dim)
    tile = dispatch.prefill(block, c.target.arch, cache.k.dtype == torch.float32)
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
    width = min(cache.width, -(-limits["window"] // PAGE_SIZE) + 1) if "window" in limits else cache.width
    splits = dispatch.splits(tokens, cache.heads, width, c.target.arch)
    sums = tokens * heads * splits
    memory = c.shared("partial", sums * (block + 2), torch.float32)
    partial = PartialAttention(*parts(memory, (sums * block, sums, sums)))
    ahead = c.target.pdl or c.target.arch == "interpreter"
    tile = dispatch.decode(block, group, c.target.arch, cache.k.dtype == torch.float32)
    shape = AttentionShape(
        dim, block, group, tile.block_m, splits, ahead, block_n=tile.block_n, precision=tile.precision, **limits
    )
    first = c.launch(
        decode_kernel, (tokens, cache.heads, splits), Matrix(q, q.stride(0)), cache, positions, partial, scale,
        shape=shape, warps=tile.warps, stages=2,
    )  # fmt: skip
    places = (None, out.q8_1) if isinstance(out, Activation) else (Matrix(out, out.stride(0)), None)
    last = c.launch(combine_kernel, (tokens, heads), partial, positions, sinks, *places, heads, shape=shape, warps=4)
    return [first, last]
