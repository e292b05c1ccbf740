"""Adapters that sequences choose: low-rank additions to products, of which each token has another one, or none.

A table is a leaf of its own kind, `adapters`: the factors of up to S adapters for products of one activation, as a
backend holds them. What is in it changes between steps; its size does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from octavo.graph.fuse import replace
from octavo.graph.low_rank import OF_A, OF_B, last_of_product, target
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply

INPUTS = {"tokens": ("adapter_rows", "adapter_starts"), "outputs": ("adapter_outputs", "adapter_output_starts")}
"""Inputs of a step: its tokens, or outputs, that have an adapter, adapter by adapter, and where those of each begin."""


def table(slots: int, rank: int, products: Sequence[Node]) -> Node:
    """A leaf for S adapters of up to `rank`, for products [N, K] of one activation: shape [S, rank, K, N, N, ...]."""
    weights = [product.inputs[0] for product in products]
    names = tuple(name for product in products if (name := target(product)) is not None)
    shape = slots, rank, weights[0].shape[1], *(weight.shape[0] for weight in weights)
    return Node("adapters", (), shape, "f32", MappingProxyType({"names": names}), f"{names[0]}.adapters")


def with_adapters(graph: Graph, slots: int, rank: int) -> Graph:
    """The graph with an op `lora` behind each product of a matrix, and a table for all products of one activation."""
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        name = target(node) if node.op == "mul_mat" else None
        if name is not None and not name.endswith((OF_A, OF_B)) and node.shape[0] in INPUTS:
            groups.setdefault(id(_activation(node)), []).append(node)
    inputs = {
        axis: (Node("input", (), (axis,), "i32", name=rows), Node("input", (), (slots + 1,), "i32", name=starts))
        for axis, (rows, starts) in INPUTS.items()
    }
    found: dict[int, Node] = {}
    for products in groups.values():
        leaf = table(slots, rank, products)
        for part, product in enumerate(products):
            last = last_of_product(product, graph.users())
            found[id(last)] = apply(
                "lora", _activation(product), *inputs[str(product.shape[0])], leaf, last,
                part=part if len(products) > 1 else None, label=product.name,
            )
    return replace(graph, found)


def _activation(product: Node) -> Node:
    """What a product's columns go with, before any order of their own."""
    x = product.inputs[1]
    return x.inputs[0] if x.op == "take_columns" else x
