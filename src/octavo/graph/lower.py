"""Lowering: a graph of plain ops as the backends that will run its nodes want it, quantized and fused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from octavo.graph.fuse import RULES, Replacements, quantize_activations, quantize_results, replace
from octavo.graph.node import Graph, Node
from octavo.graph.protocol import Backend
from octavo.graph.schedule import Place, assign, on_first


def lower(graph: Graph, backends: Sequence[Backend], place: Place = on_first, *, fused: bool = True) -> Graph:
    """The graph with activations quantized for the backend of each product, and the fusions that it asks for.

    Raises GraphError for a node that no backend runs.
    """
    where, _ = assign(graph, backends, place)
    alone = next(iter(where.values())) if len({*where.values()}) == 1 else None
    by_weight = {
        id(n.inputs[0].tensor): backends[where[id(n)]] for n in graph.nodes if n.op in ("mul_mat", "mul_mat_id")
    }
    graph = quantize_activations(graph, lambda weight, op: by_weight[id(weight)].activation(weight, op))
    if not fused:
        return graph
    for name, rule in RULES.items():
        if any(name in b.fusions for b in backends):
            graph = _replaced(graph, rule(graph), backends, place, alone, partial(_fuses, name))
    return _replaced(graph, quantize_results(graph), backends, place, alone, _quantizes)


def _replaced(
    graph: Graph, found: Replacements, backends: Sequence[Backend], place: Place, alone: int | None,
    wants: Callable[[Backend, Node], bool],
) -> Graph:
    """The graph with those replacements that the backend of the old node wants.

    Attention whose cache another layer has elsewhere stays as it is, and so does what would be made of nodes of several
    backends. `alone` is the one backend that runs all nodes, if one does.
    """
    if not found:
        return graph
    where = assign(graph, backends, place)[0] if alone is None else dict.fromkeys(map(id, graph.nodes), alone)
    found = _of_one_backend(graph, found, where)

    def fits(at: int, new: Node) -> bool:
        caches = new.inputs[1:3] if new.op == "attention" else ()
        return wants(backends[at], new) and all(where.get(id(cache), at) == at for cache in caches)

    return replace(graph, {old: new for old, new in found.items() if fits(where[old], new)})


def _of_one_backend(graph: Graph, found: Replacements, where: Mapping[int, int]) -> Replacements:
    """Those replacements of which each new node stands for old ones of the same backend."""
    if len({*where.values()}) == 1:
        return found
    old, new, backends = {id(n) for n in graph.nodes}, dict[int, list[int]](), dict[int, set[int]]()
    for node in (n for n in graph.nodes if id(n) in found):
        made, read = list[int](), set[int]()
        waiting = [found[id(node)]]
        while waiting:
            each = waiting.pop()
            if id(each) in old:
                read.add(id(each))
            else:
                made.append(id(each))
                waiting += each.inputs
        new[id(node)] = made
        stood_for = [node, *_between(node, read)]
        for each_new in made:
            backends.setdefault(each_new, set()).update(where[id(n)] for n in stood_for)
    return {node: found[node] for node, made in new.items() if all(len(backends[each]) == 1 for each in made)}


def _between(node: Node, read: Collection[int]) -> Iterator[Node]:
    """What a node is made of, down to what is `read`."""
    for source in node.inputs:
        if id(source) not in read and not source.is_leaf:
            yield source
            yield from _between(source, read)


def _fuses(name: str, backend: Backend, new: Node) -> bool:
    """Whether a backend asks for a fusion, and runs what it made: `new`, or what `new` reads."""
    return name in backend.fusions and all(backend.supports(n)[0] for n in (new, *new.inputs) if n.op == name)


def _quantizes(backend: Backend, new: Node) -> bool:
    return new.op in backend.quantizes and backend.supports(new)[0]
