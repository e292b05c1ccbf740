"""Which experts a token goes to, and what becomes of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton import next_power_of_2

from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.sizes import block_of
from octavo.backends.gpu.ops.registry import binds
from octavo.backends.gpu.pointwise import kernel as pointwise
from octavo.graph.node import Node
from octavo.graph.protocol import Call


@binds("top_k", "soft_max_top_k")
def _top_k(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    k, used = x.shape[1], out.shape[1]
    return [c.launch(pointwise.top_k_kernel, (len(x),), x, out, x.stride(0), k, used,
                     SOFT_MAX=node.op == "soft_max_top_k", B=next_power_of_2(k), warps=1)]


@binds("keep_groups")
def _keep_groups(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    (x,) = inputs
    groups, used, best = (node.attrs[name] for name in ("groups", "used", "best"))
    size = x.shape[1] // groups
    return [c.launch(pointwise.keep_groups_kernel, (len(x),), x, out, x.stride(0), groups, size, used, BEST=best,
                     GROUPS=next_power_of_2(groups), SIZE=next_power_of_2(size), warps=1)]


@binds("numbers")
def _numbers(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    tokens, count = out.shape
    return [c.launch(pointwise.numbers_kernel, (tokens,), out, count, B=next_power_of_2(count), warps=1)]


@binds("gather")
def _gather(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, ids = inputs
    used, x_stride = ids.shape[1], x.stride(0) if x.ndim == 2 else 0
    return [
        c.launch(pointwise.gather_kernel, (len(ids),), x, ids, out, x_stride, used, B=next_power_of_2(used), warps=1)
    ]


@binds("sparse_shares")
def _sparse_shares(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, ids = inputs
    k, used = x.shape[1], ids.shape[1]
    return [c.launch(pointwise.sparse_shares_kernel, (len(x),), x, ids, out, x.stride(0), k, used,
                     float(node.attrs["tolerance"]), B=next_power_of_2(k), warps=1)]


@binds("add_rows")
def _add_rows(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, rows, ids = inputs
    k = x.shape[2]
    return [c.launch(pointwise.add_rows_kernel, (ids.numel(), -(-k // 1024)), x, rows, ids, out, k, B=block_of(k))]


@binds("weighted_sum")
def _weighted_sum(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, weights = inputs
    (_, used, n), rows = x.shape, weights.numel() // x.shape[1]
    block = block_of(n)
    return [c.launch(pointwise.weighted_sum_kernel, (rows, -(-n // block)), x, weights, out, rows // len(x), used, n,
                     B=block)]


@binds("sum_experts")
def _sum_experts(c: Context, node: Node, inputs: Sequence[Any], out: Any) -> list[Call]:
    x, logits, ids, *term = inputs
    rows = term.pop(0) if node.attrs["biased"] else None
    tokens, used, n = x.shape
    block, experts = block_of(n, 512), logits.shape[1]
    return [c.launch(pointwise.sum_experts_kernel, (tokens, -(-n // block)), x, rows, matrix(logits), ids,
                     matrix(term[0]) if term else None, matrix(out), experts, used, NORMALIZED=node.attrs["normalized"],
                     EXPERTS=next_power_of_2(experts), USED=next_power_of_2(used), B=block)]
