"""What of activations their readers take, where they could be made both as codes and in the order of
`w4a16.hopper_kernel`: the other is not made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.launch.call import Captured
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.epilogue_fusion import BoundNode
from octavo.backends.gpu.matmul.launch import library_multiplies
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import MIN_TOKENS
from octavo.backends.gpu.matmul.w8a8.row_scales import MOST_TOKENS
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.row_scales import RowWeight
from octavo.graph.node import Graph
from octavo.graph.protocol import Call

ALL = frozenset({"plain", "ordered"})


class ReadLayouts(Captured):
    """Calls that make of activations only what is read.

    whole  gives calls that make all of it. They are taken where a kernel in Gluon turns out not to compile before the
           calls are captured: the one in its place may read the other half
    """

    def __init__(self, calls: Sequence[Call], whole: Callable[[], Sequence[Call]]) -> None:
        self._known, self._whole = gluon.given_up(), whole
        super().__init__(calls)

    def __call__(self) -> None:
        self.make_ready()
        if self._graph is None and gluon.given_up() != self._known:
            self.calls = tuple(self._whole())
        super().__call__()


def read_layouts(c: Context, bound: Sequence[BoundNode], graph: Graph) -> dict[int, frozenset[str]]:
    """By the number of a node that was bound, what its readers want of its result, where that is not all of it."""
    places, users = {id(b.node): i for i, b in enumerate(bound)}, graph.users()
    found: dict[int, frozenset[str]] = {}
    for i, b in enumerate(bound):
        if isinstance(b.out, Activation) and b.out.both:
            readers = [places.get(id(user), -1) for user in users[id(b.node)]]
            kinds = frozenset().union(*(ALL if r < 0 else _taken(c, bound[r], b.out) for r in readers))
            if kinds and kinds != ALL:
                found[i] = kinds
    return found


def may_copy(c: Context) -> bool:
    """Whether there are such products on this device, so that attention asks what `copies` says."""
    return dispatch.ordered(MIN_TOKENS, c.target.arch)


def copies(c: Context, bound: Sequence[BoundNode]) -> bool:
    """Whether products copy weights to shared memory: one takes activations in that order, or most are the library's
    or tensor cores' with weights that have a scale for each row."""
    products = [b for b in bound if b.node.op.startswith("mul_mat")]
    copying = [b for b in products if any(_library_or_rows(c, w, b.out) for w in b.inputs)]
    if 2 * len(copying) > len(products):
        return True
    some = {id(b.out): b.out for b in bound if isinstance(b.out, Activation) and b.out.both}
    readers = ((b, some[id(x)]) for b in bound for x in b.inputs if id(x) in some)
    return any("ordered" in (_of_products(c, b, x) or ()) for b, x in readers)


def _library_or_rows(c: Context, weight: object, y: Any) -> bool:
    return library_multiplies(c, weight, y) or (isinstance(weight, RowWeight) and len(y) > MOST_TOKENS)


def _taken(c: Context, reader: BoundNode, x: Activation) -> frozenset[str]:
    """What a node takes of x."""
    return _of_products(c, reader, x) or ALL


def _of_products(c: Context, reader: BoundNode, x: Activation) -> frozenset[str] | None:
    """What products by quantized weights take of x; None for anything else."""
    if (operands := reader.operands()) is None:
        return None
    weights, *_ = operands
    if c.deterministic or not all(isinstance(w, QuantWeight) for w in weights):
        return None
    return frozenset(
        "ordered" if dispatch.w4a16(w.layout, w.n, w.kp, x.tokens, c.target.arch) else "plain"
        for w in cast("list[QuantWeight]", c.joined(weights))
    )
