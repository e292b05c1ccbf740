"""Low-rank additions: y = W x + B A x beside each product with a weight W (LoRA, arXiv:2106.09685).

They are nodes as any others, so backends have no kernels for them, and a graph without additions is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.formats import QTensor
from octavo.graph.builder import weight
from octavo.graph.factors import LowRank
from octavo.graph.fuse import replace
from octavo.graph.node import Graph, Node
from octavo.graph.ops import apply

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
OF_A, OF_B = ".lora_a", ".lora_b"
"""Ends of names of the two factors, as GGUF files of adapters have them."""


def target(node: Node) -> str | None:
    """The name of the weight that an addition to this node's result belongs to; None where there can be none.

    An embedding that is multiplied with is the output matrix.
    """
    if node.op not in ("mul_mat", "mul_mat_id", "get_rows") or node.inputs[0].op != "weight":
        return None
    name = node.inputs[0].name
    return OUTPUT if node.op == "mul_mat" and name == EMBEDDING else name


def targets(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The weights of a graph that can be added to, by name, and their shapes."""
    found = {name: node.inputs[0].tensor.shape for node in graph.nodes if (name := target(node)) is not None}
    return {name: (1, *shape) if len(shape) == 1 else shape for name, shape in found.items()}


def with_low_rank(graph: Graph, added: Mapping[str, LowRank]) -> Graph:
    """The graph with `added`, by names of `targets` and in their shapes; others are left out.

    Where a weight's products are multiplied by its own scale, the addition comes behind that.
    """
    if not added:
        return graph
    leaves: dict[tuple[str, bool], tuple[Node, Node]] = {}
    users, found = graph.users(), dict[int, Node]()
    for node in graph.nodes:
        name, rows = target(node), node.op == "get_rows"
        if name is None or name not in added:
            continue
        if (name, rows) not in leaves:
            leaves[name, rows] = _leaves(added[name], name, transposed=rows)
        last = last_of_product(node, users)
        found[id(last)] = apply("add", last, _addition(node, *leaves[name, rows]), label=last.name)
    return replace(graph, found)


def last_of_product(node: Node, users: Mapping[int, Sequence[Node]]) -> Node:
    """A product, or it times the scale of its weight where there is one."""
    return next((user for user in users[id(node)] if _scales(user, node)), node)


def _leaves(pair: LowRank, name: str, *, transposed: bool) -> tuple[Node, Node]:
    a = _transposed(pair.a) if transposed else pair.a
    return weight(_named(a, name + OF_A)), weight(_named(pair.b, name + OF_B))


def _addition(node: Node, a: Node, b: Node) -> Node:
    """B A x, where x is what the weight's columns go with before any order of their own."""
    _, x, *ids = node.inputs
    stem = node.name
    if node.op == "get_rows":
        return apply("mul_mat", a, apply("get_rows", b, x, label=stem + OF_B), label=stem + OF_A)
    if x.op in ("take_columns", "take_columns_id"):
        x = x.inputs[0]
    return apply(node.op, b, apply(node.op, a, x, *ids, label=stem + OF_A), *ids, label=stem + OF_B)


def _scales(user: Node, product: Node) -> bool:
    """Whether a node multiplies a product by the scale of its weight, see `octavo.models.shared.layers.linear`."""
    if user.op != "mul" or user.inputs[0] is not product:
        return False
    by = user.inputs[1].inputs[0] if user.inputs[1].op == "gather" else user.inputs[1]
    return by.op == "weight" and by.name == f"{product.inputs[0].name}.scale"


def _named(tensor: QTensor, name: str) -> QTensor:
    return QTensor(tensor.format, tensor.shape, tensor.data, name)


def _transposed(tensor: QTensor) -> QTensor:
    """A matrix of floats, its rows as columns."""
    values = tensor.data.view(f"u{tensor.format.block_bytes}")
    turned = np.ascontiguousarray(values.T)
    return QTensor(tensor.format, turned.shape, turned.view(np.uint8), tensor.name)
