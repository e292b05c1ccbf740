"""Gated linear units of experts: gate and up are one product, which computes what the next one multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from octavo.backends.gpu.launch.arguments import Biases, Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.epilogue_fusion import BoundNode
from octavo.backends.gpu.matmul.experts.launch import BoundProduct, Rows, gated_products
from octavo.backends.gpu.pointwise.expressions import expression_of
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.graph.node import Graph, Node
from octavo.graph.pointwise import POINTWISE


def plain_rows(x: torch.Tensor) -> Rows:
    """Values [T, k] or [T, used, k] as they are."""
    return Rows(x, Source(matrix(x.view(-1, x.shape[-1]))), "values", x.numel() // x.shape[-1])


def gated_rows(node: Node, inputs: Sequence[Any]) -> Rows:
    """What a `mul_mat_id_gated` multiplies."""
    _, x, up, ids, *biases = inputs
    k, gating = x.shape[-1], POINTWISE[node.attrs["gating"]]
    source = Source(
        matrix(x.view(-1, k)), matrix(up.view(-1, k)), biases=Biases(biases[0], biases[1], ids) if biases else None,
        numbers=tuple(gating.given(node.attrs)),
    )
    return Rows(x, source, expression_of(gating.name), x.numel() // k)


def fuse_gating(c: Context, bound: Sequence[BoundNode], graph: Graph) -> list[BoundNode]:
    """What was bound: products by gate and up gate their results where kernels have that."""
    fused, users, outputs = list(bound), graph.users(), {id(o) for o in graph.outputs}
    places = {id(b.node): i for i, b in enumerate(bound)}
    for i, b in enumerate(bound):
        if b.node.op != "mul_mat_id_concat" or len(b.node.inputs) != 4 or id(b.node) in outputs:
            continue
        halves = users[id(b.node)]
        readers = {id(user): user for half in halves for user in users[id(half)]}
        reader = next(iter(readers.values()), None)
        if len(readers) != 1 or reader is None or any(h.op != "columns" or id(h) in outputs for h in halves):
            continue
        starts = [half.attrs.get("start") for half in reader.inputs[1:3]]
        at = places.get(id(reader), -1)
        if reader.op != "mul_mat_id_gated" or at < 0 or starts != [0, b.out.shape[-1] // 2]:
            continue
        (weight, x, ids, *others), down = b.inputs, bound[at].inputs[0]
        (weight,) = c.joined([weight, *others])
        if isinstance(weight, QuantWeight) and isinstance(down, QuantWeight) and x.ndim == 2:
            one = BoundProduct(weight, plain_rows(x), ids, b.out, ids.shape[1], b.calls)
            gated = gated_rows(reader, bound[at].inputs)
            other = BoundProduct(down, gated, ids, bound[at].out, 1, bound[at].calls)
            if (calls := gated_products(c, one, other)) is not None:
                fused[i], fused[at] = b._replace(calls=calls[0]), bound[at]._replace(calls=calls[1])
    return fused
