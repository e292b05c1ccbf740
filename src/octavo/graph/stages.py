"""Stages: a graph cut before its products, so that what these are given can be kept and looked at.

The stage of a value is the most products on a way to it. So the first products of a model are stage 1, those that need
their results stage 2, and so on: in most layers q, k and v, then the output of attention, then gate and up, then down.
Nothing is known of architectures or of names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from octavo.errors import GraphError
from octavo.formats import QTensor
from octavo.graph.builder import weight
from octavo.graph.names import split_layer
from octavo.graph.node import Graph, Node
from octavo.graph.ops import IN_PLACE

PRODUCTS = ("mul_mat", "mul_mat_id")


@dataclass(frozen=True)
class Stage:
    """Part of a graph: some products, and what is computed from their results before the next products.

    number    of the stage; 0 is what comes before any product
    takes     values of earlier stages that it reads, by number
    gives     values of its own that later stages read, by number
    written   what it writes to caches, by the cache's name
    products  its products, as the whole graph has them
    attentions  the attention that reads those caches, as the whole graph has it
    """

    number: int
    takes: Mapping[int, Node]
    gives: Mapping[int, Node]
    written: Mapping[str, Node]
    products: tuple[Node, ...]
    attentions: tuple[Node, ...] = ()

    @property
    def layer(self) -> int | None:
        """The layer of its products' weights, the last where there are several; None for those of no layer."""
        layers = [split_layer(p.inputs[0].name)[0] for p in self.products]
        return max((n for n in layers if n is not None), default=None)

    @property
    def taken(self) -> Mapping[int, int]:
        """The numbers of what it takes, by the ids of nodes."""
        return {id(n): number for number, n in self.takes.items()}

    @property
    def made(self) -> Mapping[str, Node]:
        """Those of `written` that it computes itself; the others are among `takes`."""
        taken = self.taken
        return {name: n for name, n in self.written.items() if id(n) not in taken}

    @property
    def queries(self) -> Mapping[str, Node]:
        """What attention asks that it computes itself, by the attention's name."""
        taken = self.taken
        return {n.name: n.inputs[0] for n in self.attentions if id(n.inputs[0]) not in taken}

    def graph(
        self,
        replaced: Callable[[QTensor], QTensor] = lambda tensor: tensor,
        tables: Mapping[str, QTensor] = MappingProxyType({}),
        *,
        asked: bool = False,
    ) -> Graph:
        """The stage by itself: `takes` are inputs called by `input_name`, `gives` and then `made` its outputs, and if
        `asked` `queries` after these.

        Weights of products are `replaced`, and those that rows are looked up in by `tables`, by their names.
        """
        new = {id(n): Node("input", (), n.shape, n.dtype, name=input_name(i)) for i, n in self.takes.items()}

        def renew(node: Node, *, of_product: bool = False) -> Node:
            if id(node) in new or node.is_leaf:
                if of_product and not node.attrs.get("constant"):
                    tensor = replaced(node.tensor)
                    return node if tensor is node.tensor else weight(tensor)
                return new.get(id(node), node)
            if node.op == "get_rows" and node.inputs[0].name in tables:
                new[id(node.inputs[0])] = weight(tables[node.inputs[0].name])
            product = node.op in PRODUCTS
            inputs = tuple(renew(n, of_product=product and i == 0) for i, n in enumerate(node.inputs))
            new[id(node)] = Node(node.op, inputs, node.shape, node.dtype, node.attrs, node.name)
            return new[id(node)]

        queries = self.queries.values() if asked else ()
        return Graph.of(*(renew(n) for n in (*self.gives.values(), *self.made.values(), *queries)))


def input_name(number: int) -> str:
    """What a value of an earlier stage is called where a stage reads it."""
    return f"value {number}"


def stages(graph: Graph) -> list[Stage]:
    """The stages of a graph, in order.

    Raises GraphError where a stage reads what an earlier one cached, or multiplies with weights of an earlier one:
    these could not be replaced in one stage alone.
    """
    at = _numbers(graph)
    users = graph.users()
    crossing = {
        i: n
        for i, n in enumerate(graph.nodes)
        if not n.is_leaf and any(at[id(user)] > at[id(n)] for user in users[id(n)])
    }
    for node in crossing.values():
        if node.op in IN_PLACE:
            raise GraphError(f"later layers also read {node.name}, which running layer by layer doesn't support yet")
    read: dict[str, int] = {}
    for node in graph.nodes:
        if node.op in PRODUCTS and read.setdefault(node.inputs[0].name, at[id(node)]) != at[id(node)]:
            name = node.inputs[0].name
            raise GraphError(f"later layers also read {name}, which running layer by layer doesn't support yet")
    return [_stage(graph, number, at, crossing) for number in range(max(at.values()) + 1)]


def _numbers(graph: Graph) -> dict[int, int]:
    """The stage of each node by its id; a cache is written in the stage that reads it."""
    at: dict[int, int] = {}
    for node in graph.nodes:
        before = max((at[id(i)] for i in node.inputs), default=0)
        at[id(node)] = before + (node.op in PRODUCTS)
    users = graph.users()
    for node in reversed(graph.nodes):
        if node.op in IN_PLACE and users[id(node)]:
            at[id(node)] = min(at[id(user)] for user in users[id(node)])
    return at


def _stage(graph: Graph, number: int, at: Mapping[int, int], crossing: Mapping[int, Node]) -> Stage:
    own = [n for n in graph.nodes if at[id(n)] == number and not n.is_leaf]
    read = {id(i) for n in own for i in n.inputs}
    return Stage(
        number,
        MappingProxyType({i: n for i, n in crossing.items() if id(n) in read and at[id(n)] < number}),
        MappingProxyType({i: n for i, n in crossing.items() if at[id(n)] == number}),
        MappingProxyType({n.name: n.inputs[1] for n in own if n.op == "set_rows"}),
        tuple(n for n in own if n.op in PRODUCTS),
        tuple(n for n in own if n.op == "attention"),
    )
