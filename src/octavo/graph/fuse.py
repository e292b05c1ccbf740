"""Fusion: graph to graph, putting fused ops in the place of patterns of plain ones.

Each rule is a function from a graph to replacements for some of its nodes; `lower` applies those whose fused op the
backend asks for. The result computes the same numbers, which a test holds every rule to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from octavo.formats import QTensor, dequantize
from octavo.formats.activation import STATIC
from octavo.formats.qtensor import TimesQTensor
from octavo.graph.node import DType, Graph, Node
from octavo.graph.ops import VIEWS, apply
from octavo.graph.pointwise import POINTWISE

Replacements = Mapping[int, Node]
"""id of a node -> the node to put in its place, written with nodes of the old graph."""

Rule = Callable[[Graph], Replacements]

RULES: dict[str, Rule] = {}
GATES = {name for name, each in POINTWISE.items() if each.inputs == ("gate", "up")}
"""Gated linear units."""


def _rule(rule: Rule) -> Rule:
    RULES[rule.__name__] = rule
    return rule


def replace(graph: Graph, replacements: Replacements) -> Graph:
    """The graph with nodes replaced; a replacement may use the very nodes that it stands for, or others' stand-ins."""
    new: dict[int, Node] = {}

    def renew(node: Node) -> Node:
        if id(node) not in new:
            inputs = tuple(renew(i) for i in node.inputs)
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            new[id(node)] = node if same else Node(node.op, inputs, node.shape, node.dtype, node.attrs, node.name)
        return new[id(node)]

    for node in graph.nodes:
        target = replacements.get(id(node))
        if target is None:
            renew(node)
        else:
            new[id(node)] = renew(target)
    return Graph.of(*(new[id(o)] for o in graph.outputs))


def quantize_activations(graph: Graph, activation: Callable[[QTensor, str], DType]) -> Graph:
    """The graph with a `quantize` node before each product whose backend wants its activations quantized.

    Where a weight says what its activations are divided by, that is their scale, in place of one for each token. Where
    several ranks have parts of an activation, they agree on its largest magnitude first.
    """
    quantized: dict[tuple[int, DType, float | None], Node] = {}
    replacements: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op not in ("mul_mat", "mul_mat_id"):
            continue
        weight, x, *rest = node.inputs
        wanted = activation(weight.tensor, node.op)
        if wanted in ("f32", x.dtype):
            continue
        scale = weight.static_scale if wanted in STATIC else None
        if scale is not None:
            wanted = cast(DType, STATIC[wanted])
        key = id(x), wanted, scale
        if key not in quantized:
            agreed = weight.attrs.get("agreed") and wanted in STATIC
            largest = (apply("all_max", apply("largest_magnitude", x, label=x.name), label=x.name),) if agreed else ()
            quantized[key] = apply("quantize", x, *largest, format=wanted, static_scale=scale, label=x.name)
        replacements[id(node)] = apply(node.op, weight, quantized[key], *rest, label=node.name)
    return replace(graph, replacements)


@_rule
def mul_mat(graph: Graph) -> Replacements:
    """Products and the rows that they are multiplied by -> products of weights that have these in their rows."""
    users = graph.users()
    found: dict[int, Node] = {}
    for leaf in (node for node in graph.nodes if node.op == "weight"):
        products = users[id(leaf)]
        after = [users[id(p)][0] for p in products if p.op == "mul_mat" and len(users[id(p)]) == 1]
        scales = {id(m.inputs[1]): m.inputs[1] for m in after if m.op == "mul" and m.inputs[1].attrs.get("constant")}
        if len(after) != len(products) or len(scales) != 1 or not all(id(m.inputs[1]) in scales for m in after):
            continue
        (scale,) = scales.values()
        if scale.shape != leaf.shape[:1]:
            continue
        tensor = TimesQTensor(leaf.tensor, dequantize(scale.tensor))
        times = Node("weight", (), leaf.shape, "weight", MappingProxyType({**leaf.attrs, "tensor": tensor}), leaf.name)
        for product, last in zip(products, after, strict=True):
            found[id(last)] = apply("mul_mat", times, *product.inputs[1:], label=product.name)
    return found


@_rule
def mul_mat_concat_add(graph: Graph) -> Replacements:
    """Products of one activation (q, k and v) and their biases -> one op, and views of its columns."""
    users = graph.users()
    found: dict[int, Node] = {}
    for group in _of_one_activation(graph):
        sums = [users[id(n)][0] for n in group if len(users[id(n)]) == 1 and users[id(n)][0].op == "add"]
        biases = [s.inputs[1] for s in sums if s.inputs[1].op == "weight" and len(s.inputs[1].shape) == 1]
        if len(biases) == len(group):
            weights = [n.inputs[0] for n in group]
            joined = apply("mul_mat_concat_add", group[0].inputs[1], *weights, *biases, label=group[0].name)
            found |= _columns(joined, sums)
    return found


@_rule
def mul_mat_concat(graph: Graph) -> Replacements:
    """Products of one activation (q, k and v) -> one op, and views of its columns."""
    found: dict[int, Node] = {}
    for group in _of_one_activation(graph):
        weights = [n.inputs[0] for n in group]
        found |= _columns(apply("mul_mat_concat", group[0].inputs[1], *weights, label=group[0].name), group)
    return found


def _of_one_activation(graph: Graph) -> list[list[Node]]:
    """Products, two or more of one activation each."""
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "mul_mat":
            groups.setdefault(id(node.inputs[1]), []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def _columns(joined: Node, parts: Sequence[Node]) -> Replacements:
    """For each part, which lies beside those before it, its columns of what they are joined to."""
    found, start = dict[int, Node](), 0
    for part in parts:
        size = part.shape[1]
        assert isinstance(size, int)
        found[id(part)] = apply("columns", joined, start=start, size=size, label=part.name)
        start += size
    return found


@_rule
def lora(graph: Graph) -> Replacements:
    """What adapters add to the columns of joined products -> one op of all columns, and views of these."""
    users = graph.users()
    found: dict[int, Node] = {}
    for joined in (node for node in graph.nodes if node.op == "mul_mat_concat"):
        added = [users[id(view)][0] for view in users[id(joined)] if len(users[id(view)]) == 1]
        added.sort(key=lambda node: node.attrs.get("part") or 0)
        tables = {id(node.inputs[3]) for node in added if node.op == "lora"}
        if len(tables) != 1 or any(node.op != "lora" for node in added):
            continue
        first = added[0]
        starts = [node.inputs[4].attrs["start"] for node in added]
        if len(added) == len(first.inputs[3].shape) - 3 == len(users[id(joined)]) and starts == sorted(starts):
            found |= _columns(apply("lora", *first.inputs[:4], joined, part=None, label=first.name), added)
    return found


@_rule
def mul_mat_add(graph: Graph) -> Replacements:
    """A product and the bias and residual added to it -> one op."""
    users = graph.users()
    found: dict[int, Node] = {}
    for product in graph.nodes:
        if product.op != "mul_mat":
            continue
        last, terms = product, []
        while len(users[id(last)]) == 1 and (total := users[id(last)][0]).op == "add":
            terms.append(total.inputs[1] if total.inputs[0] is last else total.inputs[0])
            last = total
        if terms:
            found[id(last)] = apply("mul_mat_add", *product.inputs, *terms, label=product.name)
    return found


@_rule
def rope_set_rows(graph: Graph) -> Replacements:
    """q/k norm, rope and the writes of k and v to the cache -> one op, where q and k are turned alike.

    Later layers that read the same cache read it after that op, too.
    """
    found: dict[int, Node] = {}
    seen: set[int] = set()
    for node in graph.nodes:
        if node.op != "attention" or id(node.inputs[1]) in seen:
            continue
        q, k, v, *batch = node.inputs
        seen.add(id(k))
        if not (q.op == "rope" and k.op == v.op == "set_rows" and k.inputs[1].op == "rope"):
            continue
        k_rope, rows = k.inputs[1], k.inputs[2]
        if q.inputs[1:] != k_rope.inputs[1:] or q.attrs != k_rope.attrs or v.inputs[2] is not rows:
            continue
        sources, norms, attrs = [q.inputs[0], k_rope.inputs[0]], [], dict(q.attrs)
        if all(s.op == "rms_norm" for s in sources) and sources[0].attrs == sources[1].attrs:
            norms = [s.inputs[1] for s in sources]
            attrs |= sources[0].attrs
            sources = [s.inputs[0] for s in sources]
        caches = [k.inputs[0], v.inputs[0]]
        done = apply("rope_set_rows", *sources, v.inputs[1], *caches, q.inputs[1], rows, q.inputs[2], *norms,
                     label=node.name, **attrs)
        written = [apply("after", c, done, label=c.name) for c in caches]
        found |= dict(zip((id(k), id(v)), written, strict=True))
        found[id(node)] = apply("attention", done, *written, *batch, label=node.name, **node.attrs)
    return found


@_rule
def mul_mat_id_gated(graph: Graph) -> Replacements:
    """A gated linear unit, biases before it, and the product of experts that alone reads it -> one op."""
    users = graph.users()
    found: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op != "mul_mat_id" or (x := node.inputs[1]).op not in GATES or len(users[id(x)]) > 1:
            continue
        weight, _, ids = node.inputs
        halves, biases = x.inputs, list[Node]()
        if all(_is_biased(half, ids, users) for half in halves):
            biases = [half.inputs[1] for half in halves]
            halves = tuple(half.inputs[0] for half in halves)
        found[id(node)] = apply(
            "mul_mat_id_gated", weight, *_side_by_side(halves, users), ids, *biases, gating=x.op, label=node.name,
            **x.attrs,
        )
    return found


def _side_by_side(halves: Sequence[Node], users: Mapping[int, Sequence[Node]]) -> Sequence[Node]:
    """Halves of a gated linear unit as parts of one product, where they are products alike, read once."""
    gate, up = halves
    if any(half.op != "mul_mat_id" or len(users[id(half)]) > 1 for half in halves) or gate is up:
        return halves
    (weight, x, ids), (other, other_x, other_ids) = gate.inputs, up.inputs
    if x is not other_x or ids is not other_ids or weight.op != "weight" or other.op != "weight":
        return halves
    if weight.tensor.format != other.tensor.format or weight.shape[0] != other.shape[0]:
        return halves
    both, (n, m) = apply("mul_mat_id_concat", weight, x, ids, other, label=gate.name), (weight.shape[1], other.shape[1])
    return apply("columns", both, start=0, size=n), apply("columns", both, start=n, size=m)


def _is_biased(node: Node, ids: Node, users: Mapping[int, Sequence[Node]]) -> bool:
    """Whether a node is a product of experts with a bias, read once."""
    return node.op == "add_rows" and node.inputs[2] is ids and len(users[id(node)]) == 1


@_rule
def sum_experts(graph: Graph) -> Replacements:
    """The sum of experts' outputs by shares of a soft-max, and a term of it -> one op of the soft-max's logits."""
    users = graph.users()
    found: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op != "weighted_sum":
            continue
        x, shares = node.inputs
        normalized = shares.op in ("normalize", "soft_max")
        gathered = shares.inputs[0] if normalized else shares
        if gathered.op != "gather":
            continue
        logits, ids = gathered.inputs
        if shares.op != "soft_max":
            if logits.op != "soft_max":
                continue
            (logits,) = logits.inputs
        biases = list[Node]()
        if biased := _is_biased(x, ids, users):
            x, *biases = x.inputs[:2]
        last, terms = node, []
        readers = users[id(node)]
        if len(readers) == 1 and readers[0].op == "add" and readers[0].inputs[0] is not readers[0].inputs[1]:
            term = readers[0].inputs[readers[0].inputs[0] is node]
            if term.shape == node.shape:
                last, terms = readers[0], [term]
        found[id(last)] = apply("sum_experts", x, logits, ids, *biases, *terms, normalized=normalized, biased=biased,
                                label=node.name)
    return found


@_rule
def soft_max_top_k(graph: Graph) -> Replacements:
    """The places of the largest numbers of a soft-max -> one op of its logits."""
    return {
        id(node): apply("soft_max_top_k", *node.inputs[0].inputs, label=node.name, **node.attrs)
        for node in graph.nodes
        if node.op == "top_k" and node.inputs[0].op == "soft_max"
    }


def quantize_results(graph: Graph) -> Replacements:
    """A value whose only reader quantizes it -> the same op with a quantized result."""
    users = graph.users()
    found: dict[int, Node] = {}
    for node in graph.nodes:
        source = node.inputs[0] if node.op == "quantize" else node
        if source is node or source.is_leaf or source.op in VIEWS or len(users[id(source)]) > 1:
            continue
        found[id(node)] = apply(
            source.op, *source.inputs, out=node.dtype, static_scale=node.static_scale, label=node.name, **source.attrs
        )
    return found
