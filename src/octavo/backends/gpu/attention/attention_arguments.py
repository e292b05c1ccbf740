"""What kernels of attention are given: caches in pages, KV splits, and what they are compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from octavo.backends.gpu.launch.arguments import Constant, Pointer
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import GROUPED, parts
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.graph.node import PAGE_SIZE


class PagedCache(NamedTuple):
    """Keys and values [rows, heads, dim] of all sequences, in pages.

    k, v                floats, or bytes of codes
    k_scales, v_scales  of codes: float16 [rows, heads, dim / 32] of q8_0 and int4, dynamic float32
                        [pages, heads, PAGE_SIZE] or static float32 [heads] of int8 and fp8; None for floats
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
    """Results of the KV splits of a sequence, float32, for `combine` (FlashDecoding).

    outputs         [sequences, heads, splits, block_d], not yet divided by `totals`
    maxima, totals  [sequences, heads, splits], of scores and of their weights
    """

    outputs: Pointer
    maxima: Pointer
    totals: Pointer


class CountedAttention(NamedTuple):
    """A PartialAttention that the last program of a head combines, a record of its own: Triton 3.6 takes no None of a
    record into a branch.

    counter  int32 [sequences, K/V heads], zeros before and after
    """

    outputs: Pointer
    maxima: Pointer
    totals: Pointer
    counter: Pointer


@dataclass(frozen=True)
class AttentionShape(Constant):
    """What kernels of attention are compiled for.

    dim        values of a head
    block_d    the power of two that holds them
    group      query heads that share a head of keys and values
    block_m    queries of a program: tokens of a prompt, or when decoding the query heads of a group, padded
    splits     when decoding, programs that share a sequence
    ahead      when decoding, read the first block before waiting for the kernel before; where keys are values too, read
               codes of a block while the one before is multiplied
    window     positions that a query sees, 0 for all
    cap        scores x become cap * tanh(x / cap), 0: they stay
    chunked    the window is fixed: a query sees the positions of its own
    precision  as in an AttentionTile
    block_n    positions of a block, which is a page or a part of one
    reach      positions after its own that a query sees too, up to the last of its sequence
    value_dim  where keys are values too, how many values of a key are; block_d then holds only these
    block_r    the power of two, at least 16, that holds the others
    part       values of queries and keys that are multiplied at a time, or whose splits are summed; 0: all
    kind       of a cache of codes: "q8_0", "int8", "fp8" or "int4"
    scales     "dynamic" or "static" where heads have scales
    own_scales of prompts: dynamic scales of values are put over the largest that a query itself sees
    alibi      scores lose 2^(-alibi (h + 1)) for each position between, of the first `sloped` heads h, and
               2^(-alibi (h - sloped + 1/2)) of those after them; 0: they lose nothing
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
    own_scales: bool = False
    alibi: float = 0.0
    sloped: int = 0

    @property
    def unit(self) -> float:
        """What scales are multiplied with: e4m3 numbers become float16 over 256."""
        return 256.0 if self.kind == "fp8" else 1.0

    @property
    def grouped(self) -> bool:
        """Whether 32 codes share a scale."""
        return self.kind in GROUPED

    @property
    def rotated(self) -> bool:
        """Whether keys and values are rotated, so that queries have to be, and results back."""
        return bool(self.kind) and CACHE_FORMATS[self.kind].rotated

    @property
    def result_dim(self) -> int:
        """Values of a head's result."""
        return self.value_dim or self.dim

    @property
    def parts(self) -> int:
        """Blocks of a page."""
        return PAGE_SIZE // self.block_n


def pages_seen(cache: PagedCache, limits: Mapping[str, Any]) -> int:
    """The most pages that a token sees."""
    return min(cache.width, -(-limits["window"] // PAGE_SIZE) + 1) if "window" in limits else cache.width


def partial_attention(c: Context, rows: int, splits: int, block: int) -> PartialAttention:
    """Memory for `splits` of the results [rows, block]."""
    sums = rows * splits
    memory = c.shared("partial", sums * (block + 2), torch.float32)
    return PartialAttention(*parts(memory, (sums * block, sums, sums)))
