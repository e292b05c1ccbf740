"""Attention of prompts by products of 8-bit numbers on compute capability 9.0: what it takes, and its launches.

Keys less a mean and queries become int8 or e4m3, values and weights e4m3. A launch before the attention makes the codes
of what a sequence sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from octavo.backends.gpu.attention.arguments import PagedCache
from octavo.backends.gpu.attention.cache_encode_kernel import encode_kernel
from octavo.backends.gpu.attention.prefill_hopper_launch import (
    DIMS,
    FEW_PAGES,
    FEW_QUERIES,
    KINDS,
    MANY_SEQUENCES,
    MOST_BYTES,
    QUERIES,
    Items,
    PrefillShape,
    fits,
)
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import Target, multiprocessors
from octavo.backends.gpu.launch.arguments import Matrix, Pointer
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.values import parts
from octavo.errors import BackendError, UsageError
from octavo.graph.node import PAGE_SIZE, Attention, Node, Sizes, bind

BLOCK = 2 * PAGE_SIZE
"""Positions whose keys, or values, share a scale."""
ARCH = "sm_90"
BEYOND = ("window", "cap", "reach", "alibi", "value_dim")
"""Attributes of attention that it has no kernel for."""


@dataclass(frozen=True)
class EightsShape(PrefillShape):
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


def require(attention: Attention, target: Target, deterministic: bool) -> None:
    """Raise BackendError where the device, or Triton, has no such products, UsageError where their order is to be
    kept."""
    if target.arch != ARCH:
        problem = f"attention {attention} on {target.name} (allowed: exact, or an NVIDIA GPU of compute capability 9.0)"
        raise BackendError(f"device gpu: {problem}")
    if deterministic:
        problem = (
            f"attention is {attention} and deterministic, which rounds by what else is in a block (allowed: exact)"
        )
        raise UsageError(problem, argument="attention")
    if not gluon.usable("eights"):
        raise BackendError(f"device gpu: no kernel for attention {attention} with this Triton (allowed: exact)")


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


def takes(
    c: Context, q: torch.Tensor, cache: PagedCache, sinks: torch.Tensor | None, scale: float, limits: Mapping[str, Any]
) -> bool:
    """Whether the kernel computes such a call."""
    if c.attention == "exact" or not gluon.usable("eights"):
        return False
    sequences, width = cache.pages.shape
    return (
        fits(c, q, cache, sinks, scale, limits) and code_bytes(sequences, width, cache.heads, q.shape[2]) <= MOST_BYTES
    )


def _width(pages: int) -> int:
    """Positions of whole blocks."""
    return -(-pages * PAGE_SIZE // BLOCK) * BLOCK


def code_bytes(sequences: int, pages: int, heads: int, dim: int) -> int:
    """Bytes of the codes and factors of so many sequences."""
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
            most = max(most, min(limits["sequences"], MANY_SEQUENCES, MOST_BYTES // of_one) * of_one)
    return most


def prefill(
    c: Context, q: torch.Tensor, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor, scale: float,
    limits: Mapping[str, Any], out: torch.Tensor, otherwise: Callable[[], Launch],
) -> list[Launch]:
    """`prefill_hopper.prefill` by 8-bit products."""
    tokens, heads, dim = q.shape
    sequences = len(starts) - 1
    shape = EightsShape(dim, heads // cache.heads, products=c.attention, **limits)
    call, codes = encode(c, cache, positions, starts, shape)
    keys, values = gluon.tiles(codes.k, BLOCK, dim), gluon.tiles(codes.v, dim, BLOCK)
    items = Items(heads, sequences, (tokens - sequences) // QUERIES + sequences, codes.width)
    return [call, gluon.Preferred(
        "eights", lambda: [otherwise()], c.target, (min(items.heads * items.tiles, multiprocessors()),),
        Matrix(q, q.stride(0)), keys, values, codes.factors, positions, starts, items, Matrix(out, out.stride(0)),
        scale, shape=EightsShape(dim, shape.group, products=c.attention), warps=4,
    )]


def encode(
    c: Context, cache: PagedCache, positions: torch.Tensor, starts: torch.Tensor, shape: EightsShape
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
