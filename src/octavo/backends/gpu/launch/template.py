"""Launches of nodes that are alike but for where their values lie: made once, and for the others with their addresses.

The layers of a model run the same kernels on other weights, caches and values. Of the nodes of a plan that are alike
the first is bound; each address in its launches lies in one of its values, or in memory that all calls of plans share.
So the launches of another are those, with the addresses of its own values, and so are calls of functions of tensors. A
node with an address that lies in neither, or with another call, is bound itself, and so is one that finds other memory
shared, or something else in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch

from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, Cache, TokenCodes
from octavo.backends.gpu.matmul.epilogue_fusion import BoundNode
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.backends.gpu.weights.row_scales import RowWeight
from octavo.graph.node import Node
from octavo.graph.protocol import Call

LASTING = (QuantWeight, FloatWeight, RowWeight, Cache)
"""Values that are there as long as the model."""
SHORT = 1 << 31
"""Bytes of memory within which kernels may be compiled to count in 32 bits."""


class Span(NamedTuple):
    """Where a tensor lies: from its first byte to after its last."""

    start: int
    end: int


class Values(NamedTuple):
    """What calls of a node may be made of: `kind` is equal for nodes whose calls differ in addresses alone."""

    kind: Any
    tensors: list[torch.Tensor]
    spans: list[Span]


class At(NamedTuple):
    """An address in the value that a span is of."""

    span: int
    offset: int


class Address:
    """What a descriptor of tiles has in place of a tensor."""

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self._address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self._address


class _Tiles(NamedTuple):
    """A descriptor of tiles of what lies at a place."""

    descriptor: Any
    at: At


class _View(NamedTuple):
    """A tensor of what lies at a place."""

    like: torch.Tensor
    at: At


class _Parts(list[Any]):
    """A tuple with addresses in it."""


class _Unknown(Exception):  # noqa: N818
    """An address that lies in no value of a node, nor in what plans share."""


class Template:
    """The launches of one node, for others like it.

    asked  what binding it asked of `Context.holds`: names, the numbers of inputs, and answers
    """

    def __init__(self, c: Context, b: BoundNode, spans: Sequence[Span], asked: Sequence[tuple[str, Any, bool]]) -> None:
        self._spans, self._shared, self._found = spans, c.scratch, dict[Any, torch.Tensor]()
        places = {id(value): i for i, value in enumerate(b.inputs)}
        if not all(id(value) in places for _, value, _ in asked):
            raise _Unknown
        self._asked = [(name, places[id(value)], answer) for name, value, answer in asked]
        self._made = [self._of_call(call) for call in b.calls]

    def _of_call(self, call: Call) -> tuple[Launch | Callable[..., None], list[Any]]:
        if isinstance(call, Launch):
            return call, [self._part(argument) for argument in call.arguments]
        if not isinstance(call, partial) or not isinstance(call.func, FunctionType):
            raise _Unknown
        if not all(isinstance(argument, torch.Tensor) for argument in call.args):
            raise _Unknown
        places = [(argument, self._place(argument)) for argument in call.args]
        return partial(call.func, **call.keywords), [x if at is None else _View(x, at) for x, at in places]

    def _part(self, argument: Any) -> Any:
        """An argument, or what it is made of where there are addresses of values in it."""
        if isinstance(argument, tuple):
            parts = [self._part(part) for part in argument]
            moves = any(isinstance(part, At | _Parts | _Tiles) for part in parts)
            return _Parts(parts) if moves else argument
        if isinstance(argument, torch.Tensor):
            return self._place(argument) or argument
        if hasattr(argument, "block_shape"):
            at = self._place(argument.base)
            return argument if at is None else _Tiles(argument, at)
        return argument

    def _place(self, tensor: torch.Tensor) -> At | None:
        """Where a tensor lies; None for memory that plans share."""
        address = tensor.data_ptr()
        for i, span in enumerate(self._spans):
            if span.start == address:
                return At(i, 0)
        within = [At(i, address - s.start) for i, s in enumerate(self._spans) if s.start < address < s.end]
        if len(within) == 1:
            return within[0]
        for name, memory in self._shared.items():
            if memory.data_ptr() <= address < memory.data_ptr() + memory.nbytes:
                self._found[name] = memory
                return None
        raise _Unknown

    def calls(
        self, c: Context, inputs: Sequence[Any], values: Values, otherwise: Callable[[], Sequence[Call]]
    ) -> list[Call] | None:
        """The launches of a node like this one; None where it finds other memory, or something else in it. `otherwise`
        binds it."""
        if any(c.scratch.get(name) is not memory for name, memory in self._found.items()):
            return None
        if not all((c.contents.get(name) is inputs[i]) == answer for name, i, answer in self._asked):
            return None
        for name, i, _ in self._asked:
            c.contents[name] = inputs[i]
        starts, calls = [span.start for span in values.spans], list[Call]()
        for made, parts in self._made:
            if isinstance(made, Launch):
                calls.append(made.moved(tuple([_filled(part, starts) for part in parts]), otherwise))
            else:
                calls.append(partial(made, *(_viewed(part, values) for part in parts)))
        return calls


def _filled(part: Any, starts: Sequence[int]) -> Any:
    kind = type(part)
    if kind is At:
        return starts[part[0]] + part[1]
    if kind is _Parts:
        return tuple([_filled(one, starts) for one in part])
    if kind is _Tiles:
        moved = copy(part.descriptor)
        moved.base = Address(starts[part.at.span] + part.at.offset, part.descriptor.base.dtype)
        return moved
    return part


def _viewed(part: Any, values: Values) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return part
    like, at = part
    base = values.tensors[at.span]
    start = values.spans[at.span].start + at.offset - base.untyped_storage().data_ptr()
    view = torch.empty(0, dtype=like.dtype, device=like.device)
    return view.set_(base.untyped_storage(), start // like.element_size(), like.shape, like.stride())


class Lasting:
    """What is known of values and nodes that last from plan to plan."""

    def __init__(self) -> None:
        self._values = dict[int, tuple[Any, tuple[int, int], Values]]()
        self._nodes = dict[int, tuple[Node, Any]]()
        self._numbers = dict[Any, int]()

    def values(self, value: Any) -> Values:
        """Of a value of LASTING. It has other tensors once it is joined with others, or has scales of another kind."""
        state = id(next(_tensors(value))), len(value.halves) if isinstance(value, QuantWeight) else 0
        known = self._values.get(id(value))
        if known is None or known[0] is not value or known[1] != state:
            found = _of(value)
            number = self._numbers.setdefault(found.kind, len(self._numbers))
            known = self._values[id(value)] = value, state, found._replace(kind=number)
        return known[2]

    def kind(self, node: Node) -> Any:
        """What of a node decides on its launches beside its values; what can't be compared is the node's alone."""
        known = self._nodes.get(id(node))
        if known is None or known[0] is not node:
            kind = node.op, node.dtype, *sorted(node.attrs.items())
            try:
                number = self._numbers.setdefault(kind, len(self._numbers))
            except TypeError:
                number = self._numbers.setdefault(node, len(self._numbers))
            known = self._nodes[id(node)] = node, number
        return known[1]


class Templates:
    """Those of a plan, by the kinds of their nodes. `bind` makes the calls of a node."""

    def __init__(self, bind: Callable[[Context, BoundNode], list[Call]], lasting: Lasting) -> None:
        self._bind, self._lasting = bind, lasting
        self._known = dict[Any, list[Template]]()
        self._seen = dict[int, tuple[Any, Values]]()

    def calls(self, c: Context, b: BoundNode) -> list[Call]:
        """The calls of a node."""
        values = self._values(c, b)
        for template in self._known.get(values.kind, ()):
            found = template.calls(c, b.inputs, values, lambda: self._bind(c.begin_plan(), b))
            if found is not None:
                return found
        recording = c.recording()
        bound = b._replace(calls=self._bind(recording, b))
        values = self._values(c, b)  # weights may have got scales of another kind, or have been joined
        try:
            template = Template(c, bound, values.spans, recording.asked or ())
            self._known.setdefault(values.kind, []).append(template)
        except _Unknown:
            pass
        return bound.calls

    def _values(self, c: Context, b: BoundNode) -> Values:
        given = [*b.inputs, b.out]
        weights = [value for value in b.inputs if isinstance(value, LASTING[:3])]
        if len(weights) > 1 and "concat" in b.node.op:
            given += c.joined(weights)
            rows = b.inputs[1 + len(weights) :] if b.node.op == "mul_mat_concat_add" else ()
            given += [c.joined_rows(rows)] if rows else []
        kinds, tensors, spans = list[Any](), list[torch.Tensor](), list[Span]()
        for value in given:
            found = self._lasting.values(value) if isinstance(value, LASTING) else self._once(value)
            kinds.append(found.kind)
            tensors += found.tensors
            spans += found.spans
        starts = [span.start for span in spans]
        same = tuple([starts.index(start) for start in starts])
        return Values((self._lasting.kind(b.node), c.wanted, c.copies, same, *kinds), tensors, spans)

    def _once(self, value: Any) -> Values:
        """Of a value of this plan, which some nodes have."""
        if id(value) not in self._seen:
            self._seen[id(value)] = value, _of(value)
        return self._seen[id(value)][1]


def _of(value: Any) -> Values:
    tensors = list(_tensors(value))
    spans = [_span(x) for x in tensors]
    shapes = [(x.dtype, x.shape, x.stride(), span.start % 16) for x, span in zip(tensors, spans, strict=True)]
    return Values((_traits(value), *shapes), tensors, spans)


def _traits(value: Any) -> Any:
    """What of a value decides on launches beside its tensors."""
    match value:
        case Activation():
            return (value.tokens, value.k, value.always_codes, value.both, value.always_halves, value.is_planar)
        case TokenCodes():
            return value.tokens, value.k, value.kind
        case QuantWeight():
            return value.layout, value.experts, value.n, value.k, (*value.parts,), _is_short(*value.parts.values())
        case FloatWeight():
            return value.experts, value.n, value.k, _is_short(value.data)
        case RowWeight():
            return value.n, value.k, _is_short(value.codes)
        case Cache():
            return value.kind, value.scales is None, _is_short(value.data)
    return None


def _is_short(*tensors: torch.Tensor) -> tuple[bool, ...]:
    return tuple(x.untyped_storage().nbytes() < SHORT for x in tensors)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    match value:
        case torch.Tensor():
            yield value
        case Activation() | TokenCodes():
            yield value.raw
        case QuantWeight():
            yield from value.parts.values()
            yield from value.halves
        case FloatWeight():
            yield value.data
        case RowWeight():
            yield from (x for x in (value.codes, value.scale, value.groups) if x is not None)
        case Cache():
            yield from (x for x in (value.data, value.scales) if x is not None)


def _span(x: torch.Tensor) -> Span:
    start = x.data_ptr()
    if x.is_contiguous():
        return Span(start, start + x.nbytes)
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return Span(start, start + (1 + last) * x.element_size())
