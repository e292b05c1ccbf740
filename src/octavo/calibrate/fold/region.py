"""What changes with a value: from one value of a graph to all others that its channels reach, until weights take it up.

Scaling the channels of a value leaves a model as it is where everything that computes with it makes up for it. Each op
says, as a rule, which channels of its inputs and its result go together (`link`) and which must stay (`fix`); from one
value on these are followed in both directions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.errors import GraphError
from octavo.graph.node import Graph, Node, Shape
from octavo.graph.pointwise import POINTWISE

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
End = Literal["rows", "columns", "norm", "vector"]

FIXED = 1
"""The label of a channel that stays; those that change have labels from 2 on, and 0 is none yet."""


class ChannelPlace(NamedTuple):
    """Where channels are: of a value (`end` is "", `key` the node's id), or at an end of a weight (`key` its name)."""

    key: int | str
    end: End | Literal[""]
    size: int


class Region:
    """The channels that change together with those of one value.

    labels  int [size] of each place: p where a channel is multiplied by what p stands for, -p where it is divided
    parent  of each label, the lowest that it is tied to
    groups  int [2, labels] of each place with `separate`d groups: the first and the last that a label is in
    """

    def __init__(self, flow: Flow, start: ChannelPlace, channels: Bools) -> None:
        """Begin with `channels` bool [size] of a value."""
        self.flow = flow
        labels = flow.inverse * (np.cumsum(channels) + FIXED)
        self.labels: dict[ChannelPlace, Ints] = {start: np.where(channels, labels, 0)}
        self.parent = np.arange(int(channels.sum()) + 2)
        self.groups: dict[ChannelPlace, Ints] = {}
        self._queue: deque[Node] = deque()
        self._queued: set[int] = set()
        self._touch(start)

    @property
    def is_fixed(self) -> bool:
        """Whether nothing may change."""
        return bool((self.parent == FIXED)[2:].all())

    def grow(self) -> bool:
        """Follow the rules to the end; whether anything is left that may change."""
        while self._queue and not self.is_fixed:
            node = self._queue.popleft()
            self._queued.discard(id(node))
            self.flow.rules[node.op](self, node)
        return not self.is_fixed

    def link(self, a: ChannelPlace, b: ChannelPlace, at_a: Any = ..., at_b: Any = ..., sign: int = 1) -> None:
        """Channels `at_a` of a change with `at_b` of b, or with `sign` -1 against them."""
        if a not in self.labels and b not in self.labels:
            return
        if not (self.flow.holds(a) and self.flow.holds(b)):
            self.fix(a, at_a)
            self.fix(b, at_b)
            return
        here, there = self._labels_of(a), self._labels_of(b)
        self._fill(a, at_a, sign * there[at_b])
        self._fill(b, at_b, sign * here[at_a])
        mine, its = here[at_a], sign * there[at_b]
        both = (mine != 0) & (its != 0) & (mine != its)
        self._tie(mine[both], its[both])

    def fix(self, place: ChannelPlace, at: Any = ...) -> None:
        """These channels stay as they are."""
        if place in self.labels:
            found = self.labels[place][at]
            found = found[found != 0]
            self._tie(found, np.sign(found) * FIXED)

    def separate(self, place: ChannelPlace, groups: Ints) -> None:
        """Channels of different `groups` [size] do not change places, though they change."""
        if place not in self.labels:
            return
        found = self.labels[place]
        lowest = np.full(len(self.parent), np.iinfo(np.int64).max)
        highest = np.full(len(self.parent), -1)
        np.minimum.at(lowest, np.abs(found), groups)
        np.maximum.at(highest, np.abs(found), groups)
        self.groups[place] = np.stack([lowest, highest])

    def roots(self, labels: Ints) -> Ints:
        """Labels with one for all that are tied to each other."""
        roots: Ints = np.sign(labels) * self.parent[np.abs(labels)]
        return roots

    def _labels_of(self, place: ChannelPlace) -> Ints:
        return self.labels.setdefault(place, np.zeros(place.size, np.int64))

    def _fill(self, place: ChannelPlace, at: Any, labels: Ints) -> None:
        """Label channels that have no label yet; one that is there several times in `at` by any label but none."""
        array = self.labels[place]
        new = (array[at] == 0) & (labels != 0)
        if new.any():
            array[np.arange(place.size)[at][new]] = labels[new]
            self._touch(place)

    def _tie(self, a: Ints, b: Ints) -> None:
        """Labels a and b are the same; where one is the other's inverse both stay."""
        opposite = (np.sign(a) != np.sign(b)) & (np.abs(a) != FIXED) & (np.abs(b) != FIXED)
        left = np.concatenate([np.abs(a), np.abs(a[opposite])])
        right = np.concatenate([np.abs(b), np.full(int(opposite.sum()), FIXED)])
        while True:
            x, y = self.parent[left], self.parent[right]
            if (x == y).all():
                return
            np.minimum.at(self.parent, np.maximum(x, y), np.minimum(x, y))
            while (self.parent != self.parent[self.parent]).any():
                self.parent = self.parent[self.parent]

    def _touch(self, place: ChannelPlace) -> None:
        for node in self.flow.readers[place.key]:
            if id(node) not in self._queued:
                self._queued.add(id(node))
                self._queue.append(node)


Rule = Callable[[Region, Node], None]


class Flow:
    """A graph, the rules of its ops, and the names of tensors whose values may change.

    inverse  -1: what is done to an input is undone in the columns of its weights; 1: columns go along
    readers  the ops that a value or a weight has a part in

    Raises GraphError for an op that has no rule.
    """

    def __init__(self, graph: Graph, rules: Mapping[str, Rule], tensors: Container[str], *, inverse: int) -> None:
        self.graph, self.rules, self.tensors, self.inverse = graph, rules, tensors, inverse
        without = sorted({node.op for node in graph.nodes if not node.is_leaf} - set(rules))
        if without:
            raise GraphError(f"op {without[0]} has no rule of what its channels may become")
        self.readers: dict[int | str, list[Node]] = {}
        self._sizes: dict[int, int] = {}
        for node in graph.nodes:
            if not node.is_leaf:
                for place in (node, *node.inputs):
                    self.readers.setdefault(place.name if place.op == "weight" else id(place), []).append(node)
            self._sizes[id(node)] = self._size(node)
        self.outputs = {id(node) for node in graph.outputs}

    def value(self, node: Node) -> ChannelPlace:
        """The channels of a value: those of a token, and with experts those of each expert."""
        return ChannelPlace(id(node), "", self._sizes[id(node)])

    def rows(self, weight: Node) -> ChannelPlace:
        """The outputs of a matrix [N, K] or of matrices [E, N, K]."""
        return ChannelPlace(weight.name, "rows", _whole(weight.shape[:-1]))

    def columns(self, weight: Node) -> ChannelPlace:
        """The inputs of a matrix [N, K], or of matrices [E, N, K]: E * K."""
        return ChannelPlace(weight.name, "columns", _whole((*weight.shape[:-2], weight.shape[-1])))

    def vector(self, weight: Node) -> ChannelPlace:
        """A bias, or what else is added."""
        return ChannelPlace(weight.name, "vector", _whole(weight.shape))

    def norm(self, weight: Node) -> ChannelPlace:
        """What a norm's result is multiplied by."""
        return ChannelPlace(weight.name, "norm", _whole(weight.shape))

    def holds(self, place: ChannelPlace) -> bool:
        """Whether a value is inside the graph, or a weight is a tensor of the file."""
        return place.key not in self.outputs if isinstance(place.key, int) else place.key in self.tensors

    def _size(self, node: Node) -> int:
        """Channels of a value; what experts make has those of each, which no op that follows has in its shape."""
        if node.op in ("mul_mat_id", "take_columns_id"):
            experts = node.inputs[0].shape[0] if node.op == "mul_mat_id" else _experts(node)
            return _whole((experts, node.shape[-1]))
        if node.op in _ELEMENTWISE:
            return self._sizes[id(node.inputs[0])]
        return _whole(node.shape[1:])


_ELEMENTWISE = frozenset({*POINTWISE, "add_rows", "rope", "keep_largest"})
"""Ops whose result has the channels of their first input."""


def _experts(node: Node) -> int:
    return _whole(node.inputs[1].shape) // _whole(node.inputs[0].shape[-1:])


def _whole(shape: Shape) -> int:
    """Values in a shape; a symbol is 1."""
    return int(np.prod([d for d in shape if isinstance(d, int)], dtype=np.int64))
