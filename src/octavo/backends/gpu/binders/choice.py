"""What the choice of a token needs of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from triton import next_power_of_2

from octavo.backends.gpu.binders.registry import binds
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels import choice
from octavo.backends.gpu.kernels.argmax_topk import topk_merge_kernel, topk_parts_kernel
from octavo.graph.node import Node
from octavo.graph.protocol import Call

BLOCK = 4096
"""Values of a row that a program takes."""


@binds("top_candidates")
def _top_candidates(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    tokens, n = x.shape
    k = node.attrs["k"]
    block = 2048 if k == 1 else 4096
    parts_of = -(-n // block)
    keys = c.shared("keys", tokens * parts_of * k, torch.int64)
    bad = c.shared("bad", tokens * parts_of, torch.int32)
    some = c.launch(topk_parts_kernel, (tokens, parts_of), x, keys, bad, x.stride(0), n, parts_of, K=k,
                    B=block)  # fmt: skip
    size = next_power_of_2(parts_of * k)
    last = c.launch(topk_merge_kernel, (tokens,), keys, bad, out, parts_of, K=k, B=size, BP=next_power_of_2(parts_of),
                    warps=max(1, min(8, size // 512)))  # fmt: skip
    return [some, last]


@binds("draw")
def _draw(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    found, settings = inputs
    k = found.shape[1] // 2
    return [c.launch(choice.draw_kernel, (len(found),), found, settings, out, K=k, B=next_power_of_2(k), warps=1)]


@binds("log_sum_exp")
def _log_sum_exp(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    tokens, n = x.shape
    parts = -(-n // BLOCK)
    sums = c.shared("sums", tokens * parts * 2, torch.float32)
    some = c.launch(choice.sum_exp_kernel, (tokens, parts), x, sums, x.stride(0), n, parts, B=BLOCK)
    return [some, c.launch(choice.log_sum_kernel, (tokens,), sums, out, parts, B=next_power_of_2(parts), warps=1)]


@binds("adjust")
def _adjust(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, places, changes = inputs
    return [c.launch(choice.adjust_kernel, (-(-len(places) // 128),), x, places, changes, x.stride(0), len(places),
                     B=128, warps=1, exact=True)]  # fmt: skip


@binds("mask")
def _mask(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, rows, masks = inputs
    n = x.shape[1]
    return [c.launch(choice.mask_kernel, (len(rows), -(-n // BLOCK)), x, rows, masks, x.stride(0), n, masks.shape[1],
                     B=BLOCK)]  # fmt: skip
