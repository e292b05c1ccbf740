"""Lowering: a graph of plain ops as the backends that will run its nodes want it, quantized and fused."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.graph.fuse import RULES, quantize_activations, replace
from octavo.graph.node import Graph, Node
from octavo.graph.protocol import Backend
from octavo.graph.schedule import Place, assign


def lower(graph: Graph, backends: Sequence[Backend], place: Place = lambda weight: 0, *, fused: bool = True) -> Graph:
    """The graph with activations quantized for the backend of each product, and the fusions that it asks for.

    Raises GraphError for a node that no backend runs.
    """
    where, _ = assign(graph, backends, place)
    by_weight = {
        id(n.inputs[0].tensor): backends[where[id(n)]] for n in graph.nodes if n.op in ("mul_mat", "mul_mat_id")
    }
    graph = quantize_activations(graph, lambda weight, op: by_weight[id(weight)].activation(weight, op))
    for name, rule in RULES.items():
        if not fused or not any(name in b.fusions for b in backends):
            continue
        found = rule(graph)
        where, _ = assign(graph, backends, place)
        graph = replace(graph, {old: new for old, new in found.items() if _wants(backends[where[old]], name, new)})
    return graph


def _wants(backend: Backend, name: str, new: Node) -> bool:
    """Whether a backend asks for a fusion, and runs what it made: `new`, or what `new` reads."""
    return name in backend.fusions and all(backend.supports(n)[0] for n in (new, *new.inputs) if n.op == name)
