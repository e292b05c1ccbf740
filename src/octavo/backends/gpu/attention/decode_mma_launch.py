"""Decoding attention on GPUs of NVIDIA: which calls the kernel in Gluon takes, in which shape, and its launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton import next_power_of_2

from octavo.backends.gpu.attention.attention_arguments import (
    CountedAttention,
    PagedCache,
    pages_seen,
    partial_attention,
)
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.launch.arguments import Constant, Matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation
from octavo.backends.gpu.matmul import dispatch
from octavo.graph.node import PAGE_SIZE

WARPS = 4
MAX_ROWS = 16
"""Query heads of a head of keys, at the most: more do not fit the registers."""
PROGRAMS, MAX_SPLITS = 132, 16
"""Programs that fill a large device, and those that share a sequence at the most."""
LARGE = ("sm_90", "sm_100", "sm_103")
"""Multiprocessors with room for two programs that have rings of three blocks."""
MANY_BLOCKS = 512
"""Blocks of all heads and sequences from which on twice as many programs are faster there."""
FLOATS, CODES = 16384, 2048
"""Positions from which on this kernel is taken, not the portable one: of a sequence of floats, of all with codes.

Alone it is faster from 512 on. In a step of few tokens it is a kernel with much shared memory among others that want
none, and to change from one to the other can take microseconds. Where products take `dispatch.ordered` activations they
want as much, and it is always taken.
"""
MIN_BLOCKS = 4
"""Blocks of a program where there is less to read than that: joining what two have takes longer than reading these."""
CONVERT = (8, 9)
"""The first compute capability that makes float16 of e4m3."""
ROOMY = ("sm_80", "sm_90", "sm_100", "sm_103")
"""Multiprocessors with more than 100 KiB of shared memory."""


@dataclass(frozen=True)
class DecodeShape(Constant):
    """What the kernel is compiled for.

    dim       values of a head
    group     query heads that share a head of keys and values
    tokens    positions of a block that a warp has
    warps
    stages    blocks that the ring holds
    splits    programs that share a sequence
    least     blocks that each of these has, unless the sequence has fewer
    kind      of a cache of codes: "q8_0", "int8" or "fp8"
    scales    "dynamic" or "static" where heads have scales
    window    positions that a query sees, 0 for all
    cap       scores x become cap * tanh(x / cap), 0: they stay
    chunked   the window is fixed: a query sees the positions of its own
    converts  the device makes float16 of e4m3 itself
    """

    dim: int
    group: int
    tokens: int
    warps: int = WARPS
    stages: int = 3
    splits: int = 1
    least: int = 1
    kind: str = ""
    scales: str = ""
    window: int = 0
    cap: float = 0.0
    chunked: bool = False
    converts: bool = False

    @property
    def rows(self) -> int:
        """Query heads as the tensor cores take them."""
        return max(8, self.members)

    @property
    def members(self) -> int:
        """The power of two that holds the query heads."""
        return int(next_power_of_2(self.group))

    @property
    def power(self) -> int:
        """The power of two that holds the splits."""
        return int(next_power_of_2(self.splits))

    @property
    def block_n(self) -> int:
        """Positions of a block."""
        return self.warps * self.tokens

    @property
    def width(self) -> int:
        """Values of a head that are read at once."""
        return min(16 if self.kind else 8, self.dim // 8)

    @property
    def unit(self) -> float:
        """What scales are multiplied with: e4m3 numbers become float16 over 256."""
        return 256.0 if self.kind == "fp8" else 1.0


def tokens(kind: str, converts: bool) -> int:
    """Positions of a block that a warp has: 8 KiB of keys and values of 128 values, or what registers hold."""
    return 32 if kind and (kind != "fp8" or converts) else 16


def shape_of(c: Context, q: torch.Tensor, cache: PagedCache, limits: Mapping[str, Any]) -> DecodeShape | None:
    """The shape for such a call, or None: the portable kernel computes it."""
    arch, (sequences, heads, dim) = c.target.arch, q.shape
    group = heads // cache.heads
    if limits.get("kind") == "int4" or ("alibi" in limits and "reach" not in limits):
        return None
    if not arch.startswith("sm_") or cache.k.dtype == torch.float32 or dim not in (64, 128) or group > MAX_ROWS:
        return None
    seen = pages_seen(cache, limits) * PAGE_SIZE
    few = sequences * seen < CODES if "kind" in limits else seen < FLOATS
    wants_memory = c.copies and dispatch.ordered(sequences, arch)
    if (few and not wants_memory) or not gluon.usable("decode"):
        return None
    of_prompts = ("reach", "alibi", "sloped")  # nothing is after the last token, nor before it where there is a reach
    given = {name: value for name, value in limits.items() if name not in of_prompts}
    converts = divmod(int(arch.removeprefix("sm_").rstrip("a")), 10) >= CONVERT
    positions = tokens(limits.get("kind", ""), converts)
    blocks = -(-seen // (WARPS * positions))
    twice = 2 if arch in LARGE and sequences * cache.heads * blocks >= MANY_BLOCKS else 1
    splits = max(1, min(blocks, twice * MAX_SPLITS, twice * PROGRAMS // (sequences * cache.heads)))
    several = splits * sequences * cache.heads > PROGRAMS  # of which two fit a multiprocessor
    stages = 2 if arch not in ROOMY else 3 if several else 4
    least = MIN_BLOCKS if few else 1
    return DecodeShape(dim, group, positions, stages=stages, splits=splits, least=least, converts=converts, **given)


def decode(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, sinks: torch.Tensor | None, scale: float,
    shape: DecodeShape, out: torch.Tensor | Activation, otherwise: Callable[[], Sequence[Launch]],
) -> Launch:
    """out [sequences, H * D] of q float32 [sequences, H, D]; `otherwise` makes the launches that take its place if
    Triton can't compile the kernel. `scale` has a factor of log2(e)."""
    sequences, heads, dim = q.shape
    given = quantized = ordered = None
    if isinstance(out, Activation):
        quantized, ordered = c.wanted_of(out)
    else:
        given = Matrix(out, out.stride(0))
    partials = None
    if shape.splits > 1:
        of_splits = partial_attention(c, sequences * heads, shape.splits, dim)
        partials = CountedAttention(*of_splits, c.counters(sequences * cache.heads))
    return gluon.Preferred(
        "decode", otherwise, c.target, (sequences, cache.heads, shape.splits), Matrix(q, q.stride(0)), cache, positions,
        sinks, given, quantized, ordered, partials, scale, shape=shape, warps=shape.warps,
    )
