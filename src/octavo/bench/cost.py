"""What a step must do at least: bytes of weights and of the KV cache that it reads, and operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo.graph.node import Node, Sizes, bind, row_bytes
from octavo.graph.schedule import root


@dataclass(frozen=True)
class Cost:
    """Bytes of weights (as the file stores them), bytes of the KV cache, and operations, a multiply-add being two."""

    weights: int = 0
    cache: int = 0
    operations: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.weights + other.weights, self.cache + other.cache, self.operations + other.operations)


@dataclass(frozen=True)
class OpLoad:
    """What a step is given: its sizes, and for each sequence the tokens that it has already and those it gets."""

    sizes: Sizes
    past: Sequence[int]
    new: Sequence[int]

    @property
    def positions(self) -> int:
        """Positions of the cache that the step reads."""
        return sum(p + n for p, n in zip(self.past, self.new, strict=True))

    @property
    def pairs(self) -> int:
        """Pairs of a query and a position that it sees."""
        return sum(n * p + n * (n + 1) // 2 for p, n in zip(self.past, self.new, strict=True))


def total(nodes: Iterable[Node], load: OpLoad) -> Cost:
    """The cost of all of them."""
    return sum((cost(n, load) for n in nodes), Cost())


def cost(node: Node, load: OpLoad) -> Cost:
    """The cost of one node: of products, of rows taken from a stored table, of attention; nothing for the others."""
    if node.op == "attention":
        return _attention(node, load)
    matrices = [i.tensor for i in node.inputs if i.op == "weight" and len(i.shape) > 1]
    if not matrices:
        return Cost()
    out = bind(node.shape, load.sizes)
    if node.op == "get_rows":
        return Cost(weights=out[0] * matrices[0].format.row_bytes(out[1]))
    if node.op.startswith("mul_mat_id"):
        (experts, _, k), (tokens, used, n) = matrices[0].shape, out
        read = experts_read(experts, used, tokens)
        return Cost(round(sum(m.nbytes for m in matrices) * read / experts), operations=2 * tokens * used * n * k)
    return Cost(sum(m.nbytes for m in matrices), operations=2 * out[0] * sum(m.size for m in matrices))


def experts_read(experts: int, used: int, tokens: int) -> float:
    """Of `experts`, how many on average are used by at least one of `tokens` that choose `used` each at random."""
    return experts * (1.0 - (1.0 - used / experts) ** tokens)


def _attention(node: Node, load: OpLoad) -> Cost:
    """Keys and values (once where they are the same) are read; a product with each key, a sum of each value seen."""
    _, heads, dim = node.inputs[0].shape
    (_, cache, values), value_dim = node.inputs[:3], node.attrs.get("value_dim", 0)
    assert isinstance(heads, int)
    assert isinstance(dim, int)
    caches = (cache,) if cache is values else (cache, values)
    each = 2 * heads * (dim + (value_dim or dim))
    return Cost(cache=round(load.positions * sum(row_bytes(root(c)) for c in caches)), operations=each * load.pairs)
