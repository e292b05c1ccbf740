"""Attention of prompts on compute capability 9.0: which calls the kernels in Gluon take, and their launches.

`prefill` multiplies float16, of a cache as it lies or made of its codes. `prefill_8bit` multiplies 8-bit numbers: keys
less a mean and queries become int8 or e4m3, values and weights e4m3. A launch before the attention makes either of what
a sequence sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from octavo.backends.gpu.attention.attention_arguments import PagedCache
from octavo.backends.gpu.attention.cache_codec_kernel import encode_kernel, unpack_kernel
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import GpuTarget, multiprocessors
from octavo.backends.gpu.launch.arguments import Constant, Matrix, Pointer
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import parts
from octavo.errors import BackendError, UsageError
from octavo.graph.node import PAGE_SIZE, Attention, Node, Sizes, bind

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
MAX_BYTES = 1 << 30
"""Of caches of codes made float16; where all that sequences may become takes more, the portable kernel runs."""
BLOCK = 2 * PAGE_SIZE
"""Positions whose keys, or values, share a scale."""
ARCH = "sm_90"
BEYOND = ("window", "cap", "reach", "alibi", "value_dim")
"""Attributes of attention that it has no kernel for."""


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


@dataclass(frozen=True)
class Prefill8BitShape(PrefillShape):
    """What the kernels are compiled for, beside what a PrefillShape says.

    products  what keys and queries are: "int8" or "fp8"
    converts  the device has an instruction that makes e4m3 of float32
    """

    stages: int = 3
    products: str = "int8"
    converts: bool = True

    @property
    def in_turn(self) -> bool:
        """Groups of warps ask for products one after the other, which pays where these are of integers."""
        return self.products == "int8"


class Codes(NamedTuple):
    """8-bit numbers of what sequences see.

    k        int8 or e4m3 [sequences * heads * width, dim]
    v        e4m3 [sequences * heads * dim, width], positions in another order
    factors  float32 [sequences * heads, width / BLOCK, 2]: what a 1 of a block's keys is, and the log2 of what one of
             its values is
    width    positions for each sequence, a multiple of BLOCK
    """

    k: Pointer
    v: Pointer
    factors: Pointer
    width: int


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
    small = "kind" not in limits or half_bytes(sequences, width, cache.heads, q.shape[2]) <= MAX_BYTES
    return small and fits(c, q, cache, sinks, scale, limits) and gluon.usable("prefill")


def fits(
    c: Context, q: torch.Tensor, cache: PagedCache, sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any]
) -> bool:
    """Whether a call is of a kind and a size for kernels in Gluon, and the device has them."""
    simple = sinks is None and scale > 0 and q.shape[2] in DIMS and not {*limits} - {"kind", "scales"}
    known = cache.k.dtype == torch.float16 or limits.get("kind") in KINDS
    sequences, width = cache.pages.shape
    large = len(q) >= FEW_QUERIES and width >= FEW_PAGES and sequences <= MANY_SEQUENCES
    return simple and known and large and c.target.arch == ARCH


def most_half_bytes(nodes: Iterable[Node], limits: Sizes, arch: str) -> int:
    """Bytes of float16 that caches are made in the largest of such calls."""
    most = 0
    for node in nodes:
        if node.op != "attention" or arch != ARCH or bind(node.shape[:1], limits)[0] < FEW_QUERIES:
            continue
        cache, (heads, dim) = node.inputs[1], bind(node.inputs[1].shape[1:], {})
        if cache.dtype not in KINDS or dim not in DIMS or limits["pages"] < FEW_PAGES:
            continue
        of_one = half_bytes(1, limits["pages"], heads, dim)
        most = max(most, min(limits["sequences"], MANY_SEQUENCES, MAX_BYTES // of_one) * of_one)
    return most


def _even(width: int) -> int:
    """Pages of whole blocks."""
    return -(-width // 2) * 2


def half_bytes(sequences: int, width: int, heads: int, dim: int) -> int:
    """Bytes of keys and values as float16, of `sequences` of `width` pages, with the factors of their positions."""
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


def require(attention: Attention, target: GpuTarget, deterministic: bool) -> None:
    """Raise BackendError where the device, or Triton, has no such products, UsageError where their order is to be
    kept."""
    if target.arch != ARCH:
        problem = f"attention {attention} on {target.name} (allowed: exact, or an NVIDIA GPU of compute capability 9.0)"
        raise BackendError(f"device gpu: {problem}")
    if deterministic:
        problem = (
            f"attention is {attention} and deterministic, which rounds by what else is in a block; use exact"
        )
        raise UsageError(problem, argument="attention")
    if not gluon.usable("prefill_8bit"):
        raise BackendError(f"device gpu: no kernel for attention {attention} with this Triton; use exact")


def serves(node: Node) -> bool:
    """Whether prompts of an attention node are of a kind that has a kernel."""
    heads, cache = node.inputs[0], node.inputs[1]
    known = cache.dtype == "f16" or cache.dtype in KINDS
    return known and heads.shape[2] in DIMS and len(node.inputs) == 6 and not any(map(node.attrs.get, BEYOND))


def require_served(attention: Attention, nodes: Iterable[Node]) -> None:
    """Raise UsageError where there is attention, and none of it is of a kind that has a kernel."""
    found = [n for n in nodes if n.op == "attention"]
    if found and not any(map(serves, found)):
        problem = f"attention is {attention}, which no layer of this model can take with this cache"
        allowed = (
            f"exact, or heads of 64 or 128 without windows, caps and sinks, and a cache of f16, {', '.join(KINDS)}"
        )
        raise UsageError(f"{problem} (allowed: {allowed})", argument="attention")


def takes_8bit(
    c: Context, q: torch.Tensor, cache: PagedCache, sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any]
) -> bool:
    """Whether the kernel computes such a call."""
    if c.attention == "exact" or not gluon.usable("prefill_8bit"):
        return False
    sequences, width = cache.pages.shape
    return (
        fits(c, q, cache, sinks, scale, limits) and code_bytes(sequences, width, cache.heads, q.shape[2]) <= MAX_BYTES
    )


def _width(pages: int) -> int:
    """Positions of whole blocks."""
    return -(-pages * PAGE_SIZE // BLOCK) * BLOCK


def code_bytes(sequences: int, pages: int, heads: int, dim: int) -> int:
    """Bytes of the codes and factors of `sequences` of `pages`."""
    return sequences * heads * (_width(pages) * 2 * dim + _width(pages) // BLOCK * 8)


def most_code_bytes(nodes: Iterable[Node], limits: Sizes) -> int:
    """Bytes of codes in the largest of such calls."""
    most = 0
    for node in nodes:
        if node.op != "attention" or not serves(node) or bind(node.shape[:1], limits)[0] < FEW_QUERIES:
            continue
        heads, dim = bind(node.inputs[1].shape[1:], {})
        if limits["pages"] >= FEW_PAGES:
            of_one = code_bytes(1, limits["pages"], heads, dim)
            most = max(most, min(limits["sequences"], MANY_SEQUENCES, MAX_BYTES // of_one) * of_one)
    return most


def prefill_8bit(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor, scale: float,
    limits: Mapping[str, Any], out: torch.Tensor, otherwise: Callable[[], Launch],
) -> list[Launch]:
    """`prefill` by 8-bit products."""
    tokens, heads, dim = q.shape
    sequences = len(starts) - 1
    shape = Prefill8BitShape(dim, heads // cache.heads, products=c.attention, **limits)
    call, codes = encode(c, cache, positions, starts, shape)
    keys, values = gluon.tiles(codes.k, BLOCK, dim), gluon.tiles(codes.v, dim, BLOCK)
    items = Items(heads, sequences, (tokens - sequences) // QUERIES + sequences, codes.width)
    return [call, gluon.Preferred(
        "prefill_8bit", lambda: [otherwise()], c.target, (min(items.heads * items.tiles, multiprocessors()),),
        Matrix(q, q.stride(0)), keys, values, codes.factors, positions, starts, items, Matrix(out, out.stride(0)),
        scale, shape=Prefill8BitShape(dim, shape.group, products=c.attention), warps=4,
    )]


def encode(
    c: Context, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor, shape: Prefill8BitShape
) -> tuple[Launch, Codes]:
    """The launch that makes codes of a cache, and where they go; the next call writes over them."""
    sequences, width = len(starts) - 1, _width(cache.pages.shape[1])
    rows = sequences * cache.heads
    memory = c.shared("codes", 2 * rows * width * shape.dim, torch.int8)
    k, v = parts(memory, (rows * width * shape.dim,) * 2)
    factors = c.shared("block scales", rows * width // BLOCK * 2, torch.float32)
    e4m3 = torch.float8_e4m3fn
    codes = Codes(
        (k if shape.products == "int8" else k.view(e4m3)).view(rows * width, shape.dim),
        v.view(e4m3).view(rows * shape.dim, width), factors, width,
    )
    as_bytes = codes._replace(k=k, v=v)
    grid = (2 * width // BLOCK, cache.heads, sequences)
    return c.launch(encode_kernel, grid, cache, positions, starts, as_bytes, shape=shape, warps=8), codes
