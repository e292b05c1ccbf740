"""Attention of prompts on compute capability 9.0: which calls the kernel in Gluon takes, and its launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from octavo.backends.gpu import gluon
from octavo.backends.gpu.arguments import Constant, Matrix
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.device import multiprocessors
from octavo.backends.gpu.launch import Launch

QUERIES = 128
"""Queries of a tile."""
PART = 64
"""Positions and values of the cache that are copied at a time."""
FEW_QUERIES, FEW_PAGES = 192, 8
"""With fewer tokens, unless much lies before them, or room for fewer pages of a sequence, the portable kernel's smaller
tiles are faster."""
MANY_SEQUENCES = 64
"""Programs look through all sequences for their tiles, which takes long with more."""


@dataclass(frozen=True)
class PrefillShape(Constant):
    """What the kernel is compiled for.

    dim      values of a head
    group    query heads that share a head of keys and values
    block_n  positions of a block
    stages   blocks that the ring holds
    """

    dim: int
    group: int
    block_n: int = 128
    stages: int = 2


class Items(NamedTuple):
    """How many heads and sequences there are, and tiles of all sequences at most."""

    heads: int
    sequences: int
    tiles: int


def takes(
    c: Context, q: torch.Tensor, keys: torch.Tensor, pages: torch.Tensor, sinks: torch.Tensor | None, scale: float,
    limits: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Whether the kernel computes such a call, and faster than the portable one."""
    simple = sinks is None and not limits and scale > 0 and keys.dtype == torch.float16 and q.shape[2] in (64, 128)
    sequences, width = pages.shape
    large = len(q) >= FEW_QUERIES and width >= FEW_PAGES and sequences <= MANY_SEQUENCES
    return simple and large and c.target.arch == "sm_90" and gluon.usable("prefill")


def prefill(
    c: Context, q: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], pages: torch.Tensor,
    positions: torch.Tensor, starts: torch.Tensor, scale: float, out: torch.Tensor, otherwise: Callable[[], Launch],
) -> Launch:  # fmt: skip
    """out float32 [T, H * D] of q float32 [T, H, D] over keys and values [rows, heads, D]; `otherwise` makes the launch
    that takes its place if Triton can't compile the kernel. `scale` has a factor of log2(e)."""
    tokens, heads, dim = q.shape
    sequences = len(starts) - 1
    items = Items(heads, sequences, (tokens - sequences) // QUERIES + sequences)
    shape = PrefillShape(dim, heads // caches[0].shape[1])
    keys, values = (gluon.tiles(x.view(len(x), -1), PART, PART) for x in caches)
    programs = min(items.heads * items.tiles, multiprocessors())
    return gluon.Preferred(
        "prefill", lambda: [otherwise()], c.target, (programs,), Matrix(q, q.stride(0)), keys, values, pages,
        pages.shape[1], positions, starts, items, Matrix(out, out.stride(0)), scale, shape=shape, warps=4,
    )  # fmt: skip
