"""Fused epilogues of one token's products: a norm, or SwiGLU, and quantizing for the next product, in place of launches
of their own.

A product by `matvec_persistent` has programs that compute whole units of 16 results. Such a unit is quantized with a
scale of its own; who multiplies next divides by the root of the mean square, from sums of squares that units leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from octavo.backends.gpu.launch.arguments import FusedEpilogue, Q8Token
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, parts
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.matvec_persistent.launch import UNIT, epilogue_shape, multiply
from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import PersistentShape
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import TILE
from octavo.graph.node import Graph, Node
from octavo.graph.ops import VIEWS
from octavo.graph.protocol import Call


class BoundNode(NamedTuple):
    """A node with its values and its calls."""

    node: Node
    inputs: Sequence[Any]
    out: Any
    calls: list[Call]

    def operands(self) -> tuple[list[Any], Any, list[Any]] | None:
        """Of a product its weights, what they multiply, and what is added: to the sum, or a row to each weight's part;
        None for other nodes."""
        if self.node.op in ("mul_mat", "mul_mat_add"):
            weight, x, *terms = self.inputs
            return [weight], x, terms
        if self.node.op in ("mul_mat_concat", "mul_mat_concat_add"):
            x, *more = self.inputs
            count = len(more) // 2 if self.node.op == "mul_mat_concat_add" else len(more)
            return more[:count], x, more[count:]
        return None


@dataclass(frozen=True)
class PersistentProduct:
    """A product of one token whose matrices all have a shape of `matvec_persistent`; results lie side by side in
    `y`."""

    weights: list[QuantWeight]
    shapes: list[PersistentShape]
    x: Activation
    y: torch.Tensor
    terms: Sequence[torch.Tensor]

    def calls(self, c: Context, x: Q8Token | None, fusion: Fusion | None) -> list[Call]:
        """With tokens `x` in place of its own, and its epilogue fused."""
        token = x or self.x.q8_1
        if fusion is not None:
            y = None if fusion.shape.epilogue == "swiglu" else self.y
            return [multiply(c, fusion.shape, self.weights[0], token, y, self.terms, fusion.epilogue)]
        ys: Sequence[torch.Tensor] = cast(Any, self.y).split([w.n for w in self.weights], 1)
        return [
            multiply(c, shape, w, token, y, self.terms)
            for w, shape, y in zip(self.weights, self.shapes, ys, strict=True)
        ]


class Fusion(NamedTuple):
    """The epilogue of a product, and the shape that has it."""

    shape: PersistentShape
    epilogue: FusedEpilogue


def fuse_epilogues(c: Context, bound: Sequence[BoundNode], graph: Graph) -> list[Call]:
    """The calls of what was bound, where `graph` has all who read their results, as fewer that do the same."""
    products = {} if c.deterministic else {i: p for i, b in enumerate(bound) if (p := _product(c, b)) is not None}
    places, users = {id(b.node): i for i, b in enumerate(bound)}, graph.users()
    tokens: dict[int, Q8Token] = {}  # of products, by place
    fusions: dict[int, Fusion] = {}
    gone: set[int] = set()
    busy: list[int] = []  # the place of the last reader of each piece of memory
    for i, b in enumerate(bound):
        maker = _maker(b, places, users)
        readers = [places.get(id(u), -1) for u in users[id(b.node)]]
        if not readers or not {maker, *readers} <= products.keys():
            continue
        shape = _shape(c, products[maker], b)
        if shape is None:
            continue
        slot = next((s for s, last in enumerate(busy) if last < maker), len(busy))
        busy[slot : slot + 1] = [max(readers)]
        epilogue, token = _memory(c, slot, b)
        fusions[maker] = Fusion(shape, epilogue)
        tokens.update(dict.fromkeys(readers, token))
        gone.add(i)
    calls: list[Call] = []
    for i, b in enumerate(bound):
        if i in fusions or i in tokens:
            calls += products[i].calls(c, tokens.get(i), fusions.get(i))
        elif i not in gone:
            calls += b.calls
    return calls


def _product(c: Context, b: BoundNode) -> PersistentProduct | None:
    if (operands := b.operands()) is None:
        return None
    weights, x, terms = operands
    if b.node.op == "mul_mat_concat_add":
        terms = [c.joined_rows(terms)]
    if not isinstance(x, Activation) or not x.is_q8_1 or x.tokens != 1:
        return None
    if not all(isinstance(w, QuantWeight) for w in weights):
        return None
    weights = cast(list[QuantWeight], c.joined(weights))
    shapes = [dispatch.persistent(w.layout, w.n, w.kp, c.target.arch) for w in weights]
    if None in shapes or (terms and len(weights) > 1):
        return None
    return PersistentProduct(weights, shapes, x, b.out, terms)  # type: ignore[arg-type]


def _maker(b: BoundNode, places: dict[int, int], users: Mapping[int, Sequence[Node]]) -> int:
    """The place of the product whose results alone `b` norms or activates, and quantizes; -1 for none."""
    if b.node.op not in ("rms_norm", "swiglu") or not b.node.quantizes or not isinstance(b.out, Activation):
        return -1
    if b.out.tokens != 1 or not b.out.is_q8_1:
        return -1
    if b.node.op == "rms_norm":
        return places.get(id(b.node.inputs[0]), -1)
    first, second = b.node.inputs
    source = first.inputs[0] if first.op == "columns" else None
    if source is None or second.op != "columns" or second.inputs[0] is not source:
        return -1
    half = source.shape[1] // 2  # type: ignore[operator]
    whole = (first.attrs["start"], second.attrs["start"], first.attrs["size"]) == (0, half, half)
    alone = all(u.op in VIEWS and users[id(u)] == [b.node] for u in users[id(source)])
    return places.get(id(source), -1) if whole and alone else -1


def _shape(c: Context, product: PersistentProduct, b: BoundNode) -> PersistentShape | None:
    """The shape of a product whose epilogue is `b`, for results that are units of one matrix."""
    (weight, *others), kind = product.weights, b.node.op
    width = product.y.shape[1] // (2 if kind == "swiglu" else 1)
    if others or b.out.k != width or width % TILE:
        return None
    return epilogue_shape(weight.layout, weight.n, weight.kp, c.target.arch, kind)  # type: ignore[arg-type]


def _memory(c: Context, slot: int, b: BoundNode) -> tuple[FusedEpilogue, Q8Token]:
    """What a product leaves and the next ones read."""
    k = b.out.k
    memory = c.shared(f"token {slot}", 2 * k, torch.uint8)
    codes, *others = parts(memory, (k, *(k // UNIT * 4,) * 3))
    scale, sums, squares = (p.view(torch.float32) for p in others)
    codes = codes.view(torch.int8)
    normed = b.node.op == "rms_norm"
    weight, eps = (b.inputs[1], float(b.node.attrs["eps"])) if normed else (None, 0.0)
    epilogue = FusedEpilogue(codes, scale, sums, squares if normed else None, weight)
    return epilogue, Q8Token(codes.view(torch.int32), scale, None, sums, 1, squares if normed else None, eps)
