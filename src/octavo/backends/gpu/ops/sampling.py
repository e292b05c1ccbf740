"""What the choice of a token needs of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from triton import next_power_of_2

from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.sampling import logits_kernel as logits
from octavo.backends.gpu.sampling import topk_kernel
from octavo.graph.node import Node
from octavo.graph.protocol import Call

BLOCK, PART = 4096, 2048
"""Values of a row that a program takes, and where the largest is looked for."""
GROUP, GROUPS = 64, 32
"""Values of which the largest is found, and such groups of a program, where more than one value is looked for."""
RANKED, FEW = 16, 128
"""Groups that a program ranks among all, and values that are ranked among each other."""


@binds("top_candidates")
def _top_candidates(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,), k = inputs, node.attrs["k"]
    return _best(c, x, out) if k == 1 else _largest(c, x, out, k)


def _best(c: Context, x: torch.Tensor, out: torch.Tensor) -> list[Call]:
    tokens, n = x.shape
    parts = -(-n // PART)
    keys, bad = c.shared("keys", tokens * parts, torch.int64), c.shared("bad", tokens * parts, torch.int32)
    some = c.launch(topk_kernel.best_parts_kernel, (tokens, parts), x, keys, bad, x.stride(0), n, parts, B=PART)
    size = next_power_of_2(parts)
    return [some, c.launch(topk_kernel.best_merge_kernel, (tokens,), keys, bad, out, parts, B=size, warps=1)]


def _largest(c: Context, x: torch.Tensor, out: torch.Tensor, k: int) -> list[Call]:
    tokens, n = x.shape
    size = next_power_of_2(max(1, min(GROUP, n // k)))
    size = size if size * k <= n else size // 2  # so that there are k groups
    groups = -(-n // (size * GROUPS)) * GROUPS
    blocks = groups // GROUPS
    keys, chosen = c.shared("keys", tokens * groups, torch.int64), c.shared("chosen", tokens * k, torch.int64)
    bad, few = c.shared("bad", tokens * blocks, torch.int32), c.shared("few", tokens * FEW, torch.int64)
    return [
        c.launch(topk_kernel.group_maxima_kernel, (tokens, blocks), x, keys, bad, x.stride(0), n, groups,
                 SIZE=size, BLOCK=GROUPS),
        c.launch(topk_kernel.rank_groups_kernel, (tokens, -(-groups // RANKED)), keys, chosen, groups, K=k,
                 BLOCK=RANKED, STEP=min(512, next_power_of_2(groups)), warps=8),
        c.launch(topk_kernel.topk_of_groups_kernel, (tokens,), matrix(x), chosen, bad, few, out, n, groups,
                 K=k, SIZE=size, MOST=FEW, BLOCKS=blocks, warps=8),
    ]


@binds("merge_candidates")
def _merge_candidates(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,), firsts, k = inputs, node.attrs["firsts"], node.attrs["k"]
    return [c.launch(topk_kernel.merge_ranks_kernel, (len(x),), x, firsts, out, x.stride(0), K=k,
                     B=next_power_of_2(k), warps=1 if k == 1 else 8)]


@binds("local_places")
def _local_places(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (places,) = inputs
    return [c.launch(logits.local_places_kernel, (-(-len(places) // 128),), places, out, len(places),
                     node.attrs["first"], node.attrs["count"], B=128, warps=1)]


@binds("draw")
def _draw(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    found, settings = inputs
    k = found.shape[1] // 2
    return [c.launch(logits.draw_kernel, (len(found),), found, settings, out, K=k, B=next_power_of_2(k), warps=1)]


@binds("log_sum_exp")
def _log_sum_exp(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    tokens, n = x.shape
    parts = -(-n // BLOCK)
    sums = c.shared("sums", tokens * parts * 2, torch.float32)
    some = c.launch(logits.sum_exp_kernel, (tokens, parts), x, sums, x.stride(0), n, parts, B=BLOCK)
    return [
        some,
        c.launch(logits.log_sum_kernel, (tokens,), sums, out, parts, B=next_power_of_2(parts), warps=1),
    ]


@binds("adjust")
def _adjust(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, places, changes = inputs
    return [c.launch(logits.adjust_kernel, (-(-len(places) // 128),), x, places, changes, x.stride(0), len(places),
                     B=128, warps=1, exact=True)]


@binds("mask")
def _mask(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, rows, masks = inputs
    n = x.shape[1]
    return [c.launch(logits.mask_kernel, (len(rows), -(-n // BLOCK)), x, rows, masks, x.stride(0), n, masks.stride(0),
                     B=BLOCK)]
