"""Nodes: the values of a graph, each made by one op from the values before it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from octavo.formats import QTensor
from octavo.formats.cache_formats import CACHE_FORMATS

Dim = int | str
"""A size: a number, or the name of one that is known only when a step runs (see SYMBOLS)."""

Shape = tuple[Dim, ...]

SYMBOLS = {
    "tokens": "tokens in the step, of all sequences one after the other",
    "outputs": "tokens whose logits are wanted",
    "sequences": "sequences in the step",
    "boundaries": "sequences that may have more than one token in the step, + 1",
    "pages": "width of the page table",
    "rows": "rows of the KV cache",
    "window_rows": "rows of the KV cache of layers with a window, where these have pages of their own",
    "adjusted": "logits that are changed before a token is chosen",
    "masked": "tokens whose logits have a mask",
    "states": "slots for the states of sequences",
}

PAGE_SIZE = 64
"""Rows of the KV cache in a page: what a sequence is given at a time, and what kernels of attention read at a time."""

DType = Literal[
    "f32", "f16", "bf16", "i32", "i64", "q8_0", "int8", "fp8", "int4",
    "q8_1", "f16_tiles", "int8_token", "fp8_token", "int8_static", "fp8_static", "weight",
]
ACTIVATIONS = frozenset(
    {"f16", "bf16", "q8_1", "f16_tiles", "int8_token", "fp8_token", "int8_static", "fp8_static"}
)
"""Types of values that only a product reads; each backend has a layout of its own for them. Caches may be f16, too."""

Device = Literal["auto", "cpu", "gpu", "reference"]
Attention = Literal["exact", "int8", "fp8"]
"""What attention of prompts multiplies: floats, or 8-bit numbers, queries and keys int8 or e4m3."""
Sizes = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Node:
    """One value: the op that makes it, what it is made from, and its shape.

    `name` is for people (a weight's name, or of the weight that a product belongs to); identity is the object's own.
    """

    op: str
    inputs: tuple[Node, ...]
    shape: Shape
    dtype: DType
    attrs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    name: str = ""

    @property
    def is_leaf(self) -> bool:
        """True for what a step is given: inputs, weights, caches, states and tables of adapters."""
        return self.op in ("input", "weight", "cache", "state", "adapters")

    @property
    def quantizes(self) -> bool:
        """True where the op's float32 result is quantized on its way out, to `dtype`."""
        return self.dtype in ACTIVATIONS and self.op not in ("quantize", "cache", "set_rows", "after")

    @property
    def static_scale(self) -> float | None:
        """What a value is divided by when it is quantized with a given scale; of a weight, what its products say."""
        scale: float | None = self.attrs.get("static_scale")
        return scale

    @property
    def title(self) -> str:
        """The op, and what its result is quantized to, if it is: `rms_norm`, `rms_norm:q8_1`."""
        return f"{self.op}:{self.dtype}" if self.quantizes else self.op

    @property
    def tensor(self) -> QTensor:
        """The stored tensor of a weight node."""
        assert self.op == "weight"
        tensor: QTensor = self.attrs["tensor"]
        return tensor

    def __repr__(self) -> str:
        return f"Node({self.op}, {self.name or '-'}, {list(self.shape)})"


def is_static(cache: Node) -> bool:
    """Whether a cache has static scales."""
    return cache.attrs.get("static") is not None


def row_bytes(cache: Node) -> float:
    """Bytes of a row of a cache, all heads and their scales."""
    heads, dim = bind(cache.shape[1:], {})
    return heads * CACHE_FORMATS[cache.dtype].row_bytes(dim, static=is_static(cache))


def cache_bytes(cache: Node, sizes: Sizes) -> int:
    """Bytes of a cache."""
    return int(bind(cache.shape[:1], sizes)[0] * row_bytes(cache))


def kept_bytes(nodes: Iterable[Node], sizes: Sizes) -> int:
    """Bytes of the caches, states and tables of adapters that `nodes` read, which last; each once."""
    return sum(leaf_bytes(leaf, sizes) for leaf in lasting(nodes) if leaf.op != "weight")


def lasting(nodes: Iterable[Node]) -> list[Node]:
    """The weights, caches, states and tables that `nodes` read, each once."""
    return list({id(i): i for n in nodes for i in n.inputs if i.is_leaf and i.op != "input"}.values())


def leaf_bytes(leaf: Node, sizes: Sizes) -> int:
    """Bytes of a leaf that lasts: of a weight as it is stored, of a cache, a state, or a table full of 16 bits."""
    if leaf.op == "weight":
        return leaf.tensor.nbytes
    if leaf.op == "adapters":
        slots, rank, k, *widths = bind(leaf.shape, sizes)
        return 2 * slots * rank * sum(n + k for n in widths)
    return 4 * math.prod(bind(leaf.shape, sizes)) if leaf.op == "state" else cache_bytes(leaf, sizes)


def bind(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    """The shape in numbers, symbols replaced by `sizes`."""
    return tuple(d if isinstance(d, int) else sizes[d] for d in shape)


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can run, and those of them that are results."""

    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @classmethod
    def of(cls, *outputs: Node) -> Graph:
        """The graph of everything that `outputs` need, inputs before their users (depth first, without recursion)."""
        order: dict[int, Node] = {}
        stack: list[tuple[Node, Iterator[Node]]] = []
        started: set[int] = set()
        for output in outputs:
            stack.append((output, iter(output.inputs)))
            while stack:
                node, rest = stack[-1]
                child = next((c for c in rest if id(c) not in started), None)
                if child is not None:
                    started.add(id(child))
                    stack.append((child, iter(child.inputs)))
                else:
                    stack.pop()
                    order.setdefault(id(node), node)
        return cls(tuple(order.values()), outputs)

    def users(self) -> Mapping[int, Sequence[Node]]:
        """id(node) -> nodes that read it."""
        return self._users

    @cached_property
    def _users(self) -> dict[int, list[Node]]:
        users: dict[int, list[Node]] = {id(n): [] for n in self.nodes}
        for node in self.nodes:
            for source in node.inputs:
                users[id(source)].append(node)
        return users

    def leaves(self, op: str) -> Iterable[Node]:
        """The leaves of one kind: "input", "weight", "cache" or "state"."""
        return (n for n in self.nodes if n.op == op)
