"""Attention of prompts on compute capability 9.0: which calls the kernel in Gluon takes, and its launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from octavo.backends.gpu.attention.arguments import PagedCache
from octavo.backends.gpu.attention.cache_decode_kernel import unpack_kernel
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import multiprocessors
from octavo.backends.gpu.launch.arguments import Constant, Matrix, Pointer
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.values import parts
from octavo.graph.node import PAGE_SIZE, Node, Sizes, bind

QUERIES = 128
"""Queries of a tile."""
PART = 64
"""Positions and values of the cache that are copied at a time."""
FEW_QUERIES, FEW_PAGES = 192, 8
"""With fewer tokens, unless much lies before them, or room for fewer pages of a sequence, the portable kernel's smaller
tiles are faster."""
KINDS, DIMS = ("int8", "fp8", "q8_0"), (64, 128)
"""Caches of codes that become float16, and sizes of heads."""
PROGRAMS = 128
"""Programs that make a head of a sequence float16, at the most."""
MANY_SEQUENCES = 64
"""Programs look through all sequences for their tiles, which takes long with more."""
MOST_BYTES = 1 << 30
"""Of caches of codes made float16; where all that sequences may become takes more, the portable kernel runs."""


@dataclass(frozen=True)
class PrefillShape(Constant):
    """What the kernel is compiled for.

    dim      values of a head
    group    query heads that share a head of keys and values
    block_n  positions of a block
    stages   blocks that the ring holds
    kind     of the cache's codes, of which float16 was made: "int8", "fp8" or "q8_0"
    scales   of int8 and fp8, "dynamic" or "static"
    """

    dim: int
    group: int
    block_n: int = 128
    stages: int = 2
    kind: str = ""
    scales: str = ""

    @property
    def unit(self) -> float:
        """What scales are multiplied with: e4m3 numbers become float16 over 256."""
        return 256.0 if self.kind == "fp8" else 1.0


class Items(NamedTuple):
    """How many heads and sequences there are, tiles of all sequences at most, and pages for each sequence."""

    heads: int
    sequences: int
    tiles: int
    width: int


class HalfCaches(NamedTuple):
    """Keys and values as float16 [sequences * width * PAGE_SIZE, heads, dim]."""

    k: Pointer
    v: Pointer
    width: int


class Factors(NamedTuple):
    """What scores and weights are multiplied with, float32.

    k, v    scales of heads, where they are static; otherwise k has [sequences, heads, blocks, 2, block_n], of a block's
            positions what scores and after that what weights are multiplied with, and v is None
    stride  of heads
    """

    k: Pointer
    v: Pointer | None
    stride: int


def takes(
    c: Context, q: torch.Tensor, cache: PagedCache, sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any]
) -> bool:
    """Whether the kernel computes such a call, and faster than the portable one."""
    sequences, width = cache.pages.shape
    small = "kind" not in limits or half_bytes(sequences, width, cache.heads, q.shape[2]) <= MOST_BYTES
    return small and fits(c, q, cache, sinks, scale, limits) and gluon.usable("prefill")


def fits(
    c: Context, q: torch.Tensor, cache: PagedCache, sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any]
) -> bool:
    """Whether a call is of a kind and a size for kernels in Gluon, and the device has them."""
    simple = sinks is None and scale > 0 and q.shape[2] in DIMS and not {*limits} - {"kind", "scales"}
    known = cache.k.dtype == torch.float16 or limits.get("kind") in KINDS
    sequences, width = cache.pages.shape
    large = len(q) >= FEW_QUERIES and width >= FEW_PAGES and sequences <= MANY_SEQUENCES
    return simple and known and large and c.target.arch == "sm_90"


def most_half_bytes(nodes: Iterable[Node], limits: Sizes, arch: str) -> int:
    """Bytes of float16 that caches are made in the largest of such calls."""
    most = 0
    for node in nodes:
        if node.op != "attention" or arch != "sm_90" or bind(node.shape[:1], limits)[0] < FEW_QUERIES:
            continue
        cache, (heads, dim) = node.inputs[1], bind(node.inputs[1].shape[1:], {})
        if cache.dtype not in KINDS or dim not in DIMS or limits["pages"] < FEW_PAGES:
            continue
        of_one = half_bytes(1, limits["pages"], heads, dim)
        most = max(most, min(limits["sequences"], MANY_SEQUENCES, MOST_BYTES // of_one) * of_one)
    return most


def _even(width: int) -> int:
    """Pages of whole blocks."""
    return -(-width // 2) * 2


def half_bytes(sequences: int, width: int, heads: int, dim: int) -> int:
    """Bytes of keys and values of so many sequences as float16, with the factors of their positions."""
    return sequences * _even(width) * PAGE_SIZE * heads * (2 * 2 * dim + 2 * 4)


def prefill(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor, scale: float,
    limits: Mapping[str, Any], out: torch.Tensor, otherwise: Callable[[], Launch],
) -> list[Launch]:
    """out float32 [T, H * D] of q float32 [T, H, D] over the keys and values of a cache; `otherwise` makes the launch
    that takes its place if Triton can't compile the kernel. `scale` has a factor of log2(e). A cache of codes becomes
    float16 before."""
    tokens, heads, dim = q.shape
    sequences = len(starts) - 1
    shape = PrefillShape(dim, heads // cache.heads, **limits)
    before, pair, factors = list[Launch](), (cache.k, cache.v), None
    pages, width = cache.pages, cache.width
    if shape.kind:
        call, halves, factors = _unpack(c, cache, positions, starts, scale, shape)
        before, pair, pages, width = [call], (halves.k, halves.v), None, halves.width
    keys, values = (gluon.tiles(x.view(-1, cache.heads * dim), PART, PART) for x in pair)
    items = Items(heads, sequences, (tokens - sequences) // QUERIES + sequences, width)
    programs = min(items.heads * items.tiles, multiprocessors())
    return [*before, gluon.Preferred(
        "prefill", lambda: [otherwise()], c.target, (programs,), Matrix(q, q.stride(0)), keys, values, factors, pages,
        positions, starts, items, Matrix(out, out.stride(0)), scale, shape=shape, warps=4,
    )]


def _unpack(
    c: Context, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor, scale: float, shape: PrefillShape
) -> tuple[Launch, HalfCaches, Factors | None]:
    """The launch that makes a cache float16, and where it goes; the next call with such a cache writes over it."""
    sequences, width = len(starts) - 1, _even(cache.pages.shape[1])
    rows = sequences * width * PAGE_SIZE * cache.heads
    memory = c.shared("halves", 2 * rows * shape.dim, torch.float16)
    k, v = parts(memory, (rows * shape.dim,) * 2)
    halves = HalfCaches(k, v, width)
    factors = Factors(cache.k_scales, cache.v_scales, 0) if shape.scales else None
    if shape.scales == "dynamic":
        factors = Factors(c.shared("factors", 2 * rows, torch.float32), None, 2 * width * PAGE_SIZE)
    grid = (min(width, PROGRAMS), cache.heads, sequences)
    call = c.launch(unpack_kernel, grid, cache, positions, starts, halves, factors, scale, shape=shape, warps=4)
    return call, halves, factors
