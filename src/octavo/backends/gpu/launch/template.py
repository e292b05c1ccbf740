"""Launches of nodes that are alike but for where their values lie: made once, and for the others with their addresses.

The layers of a model run the same kernels on other weights, caches and values. Of the nodes of a plan that are alike
the first is bound; each address in its launches lies in one of its values, or in memory that all calls of plans share.
So the launches of another are those, with the addresses of its own values, and so are calls of functions of tensors. A
node with an address that lies in neither, or with another call, is bound itself, and so is one that finds other memory
shared, or something else in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, Cache, TokenCodes
from octavo.backends.gpu.matmul.epilogue_fusion import BoundNode
from octavo.backends.gpu.matmul.lora import AdapterTable
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.backends.gpu.weights.row_scales import RowWeight
from octavo.graph.node import Node
from octavo.graph.protocol import Call

LASTING = (QuantWeight, FloatWeight, RowWeight, Cache, AdapterTable)
"""Values that are there as long as the model."""
SHORT = 1 << 31
"""Bytes of memory within which kernels may be compiled to count in 32 bits."""


class Values(NamedTuple):
    """What calls of a node may be made of.

    kind     equal for nodes whose calls differ in addresses alone
    tensors  of its values
    starts   where they lie
    """

    kind: Any
    tensors: Sequence[torch.Tensor]
    starts: Sequence[int]


class At(NamedTuple):
    """An address in a tensor of a node's values."""

    tensor: int
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

    def __init__(self, c: Context, b: BoundNode, values: Values, asked: Sequence[tuple[str, Any, bool]]) -> None:
        self._starts, self._shared, self._found = values.starts, c.scratch, dict[Any, torch.Tensor]()
        self._ends = [start + _nbytes(x) for start, x in zip(values.starts, values.tensors, strict=True)]
        places = {id(value): i for i, value in enumerate(b.inputs)}
        if not all(id(value) in places for _, value, _ in asked):
            raise _Unknown
        self._asked = [(name, places[id(value)], answer) for name, value, answer in asked]
        self._made = [self._of_call(call) for call in b.calls]

    def _of_call(self, call: Call) -> tuple[Launch | Callable[..., None], Sequence[Any], Sequence[tuple[int, Any]]]:
        """A call, its arguments, and by number those that have addresses of values."""
        if isinstance(call, Launch):
            parts = [self._part(argument) for argument in call.arguments]
            moves = [(i, part) for i, part in enumerate(parts) if isinstance(part, At | _Parts | _Tiles)]
            return call, call.arguments, moves
        if not isinstance(call, partial) or not isinstance(call.func, FunctionType):
            raise _Unknown
        if not all(isinstance(argument, torch.Tensor) for argument in call.args):
            raise _Unknown
        views = [(i, _View(x, at)) for i, x in enumerate(call.args) if (at := self._place(x)) is not None]
        return partial(call.func, **call.keywords), call.args, views

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
        if address in self._starts:
            return At(self._starts.index(address), 0)
        spans = enumerate(zip(self._starts, self._ends, strict=True))
        within = [At(i, address - start) for i, (start, end) in spans if start < address < end]
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
        starts, calls = values.starts, list[Call]()
        for made, arguments, moves in self._made:
            given = list(arguments)
            if isinstance(made, Launch):
                for i, part in moves:
                    given[i] = _filled(part, starts)
                calls.append(made.moved(tuple(given), otherwise))
            else:
                for i, view in moves:
                    given[i] = _viewed(view, values)
                calls.append(partial(made, *given))
        return calls


def _filled(part: Any, starts: Sequence[int]) -> Any:
    kind = type(part)
    if kind is At:
        return starts[part[0]] + part[1]
    if kind is _Parts:
        return tuple([_filled(one, starts) for one in part])
    if kind is _Tiles:
        moved = object.__new__(type(part.descriptor))
        base = Address(starts[part.at.tensor] + part.at.offset, part.descriptor.base.dtype)
        moved.__dict__.update(part.descriptor.__dict__, base=base)
        return moved
    return part


def _viewed(part: _View, values: Values) -> torch.Tensor:
    like, at = part
    base = values.tensors[at.tensor]
    start = values.starts[at.tensor] + at.offset - base.untyped_storage().data_ptr()
    view = torch.empty(0, dtype=like.dtype, device=like.device)
    return view.set_(base.untyped_storage(), start // like.element_size(), like.shape, like.stride())


class Lasting:
    """What is known of values and nodes that last from plan to plan; it keeps none of them."""

    def __init__(self) -> None:
        self._values = WeakKeyDictionary[Any, tuple[tuple[int, int], Values]]()
        self._nodes = WeakKeyDictionary[Node, int]()
        self._numbers = dict[Any, int]()

    def values(self, value: Any) -> Values:
        """Of a value of LASTING. It has other tensors once it is joined with others, or has scales of another kind."""
        state = id(next(_tensors(value))), len(value.halves) if isinstance(value, QuantWeight) else 0
        known = self._values.get(value)
        if known is None or known[0] != state:
            found = _of(value)
            known = self._values[value] = state, found._replace(kind=self._number(found.kind))
        return known[1]

    def kind(self, node: Node) -> int:
        """What of a node decides on its launches beside its values; what can't be compared is the node's alone."""
        known = self._nodes.get(node)
        if known is None:
            kind = node.op, node.dtype, *sorted(node.attrs.items())
            try:
                known = self._number(kind)
            except TypeError:
                known = self._number(("node", id(node)))
            self._nodes[node] = known
        return known

    def _number(self, kind: Any) -> int:
        return self._numbers.setdefault(kind, len(self._numbers))


class Templates:
    """Those of a plan, by the kinds of their nodes. `bind` makes the calls of a node."""

    def __init__(self, bind: Callable[[Context, BoundNode], list[Call]], lasting: Lasting) -> None:
        self._bind, self._lasting = bind, lasting
        self._known = dict[Any, list[Template]]()
        self._seen = dict[int, tuple[Any, Values]]()
        """What is known of values, by their ids."""

    def calls(self, c: Context, b: BoundNode) -> list[Call]:
        """The calls of a node."""
        values, bind = self._values(c, b), self._bind
        for template in self._known.get(values.kind, ()):
            found = template.calls(c, b.inputs, values, lambda: bind(c.begin_plan(), b))
            if found is not None:
                return found
        recording = c.recording()
        bound = b._replace(calls=self._bind(recording, b))
        self._seen.clear()  # weights may have got scales of another kind, or have been joined
        values = self._values(c, b)
        try:
            template = Template(c, bound, values, recording.asked or ())
            self._known.setdefault(values.kind, []).append(template)
        except _Unknown:
            pass
        return bound.calls

    def _values(self, c: Context, b: BoundNode) -> Values:
        given = [*b.inputs, b.out]
        if "concat" in b.node.op:
            weights = [value for value in b.inputs if isinstance(value, QuantWeight | FloatWeight | RowWeight)]
            given += c.joined(weights)
            rows = b.inputs[1 + len(weights) :] if b.node.op == "mul_mat_concat_add" else ()
            given += [c.joined_rows(rows)] if rows else []
        found = [(self._seen.get(id(value)) or self._see(value))[1] for value in given]
        starts = [start for each in found for start in each.starts]
        same, kinds = tuple(map(starts.index, starts)), tuple([each.kind for each in found])
        kind = self._lasting.kind(b.node), c.wanted, c.copies, same, kinds
        return Values(kind, [x for each in found for x in each.tensors], starts)

    def _see(self, value: Any) -> tuple[Any, Values]:
        seen = value, self._lasting.values(value) if isinstance(value, LASTING) else _of(value)
        self._seen[id(value)] = seen
        return seen


def _of(value: Any) -> Values:
    tensors = tuple(_tensors(value))
    starts = [x.data_ptr() for x in tensors]
    shapes = [(x.dtype, x.shape, x.stride(), start % 16) for x, start in zip(tensors, starts, strict=True)]
    return Values((_traits(value), *shapes), tensors, starts)


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
        case AdapterTable():
            return value.slots, value.k, value.sizes, value.rank, _is_short(value.a, value.b)
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
        case AdapterTable():
            yield from (value.a, value.b, value.scales, value.ranks)
        case Cache():
            yield from (x for x in (value.data, value.scales) if x is not None)


def _nbytes(x: torch.Tensor) -> int:
    """Bytes from a tensor's first to after its last."""
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return (1 + last) * x.element_size() if x.numel() else 0
