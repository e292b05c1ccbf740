"""Leaves of a rank's graph: weights and caches of which it has a part."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from octavo.formats import dequantize
from octavo.formats.part import Cut, TensorPart, size_of
from octavo.graph.builder import constant
from octavo.graph.node import Node


class Leaves:
    """Makes parts of leaves, the same one each time, so that what is read in several places is loaded once."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Node] = {}

    def weight(
        self, node: Node, rows: Cut | None = None, columns: Cut | None = None, experts: Cut | None = None, *,
        agreed: bool = False,
    ) -> Node:
        """A weight [N, K] or [E, N, K] with some of its rows, columns and experts; None: all.

        agreed  what it is multiplied with has a scale for each row, which all ranks agree on
        """
        key = id(node.tensor), rows, columns, experts
        if key not in self._made:
            tensor = TensorPart(node.tensor, rows, columns, experts)
            attrs = {**node.attrs, "tensor": tensor, "part": key[1:]} | ({"agreed": True} if agreed else {})
            self._made[key] = Node("weight", (), tensor.shape, "weight", MappingProxyType(attrs), node.name)
        return self._made[key]

    def vector(self, node: Node, cut: Cut, shape: tuple[int, ...] = ()) -> Node:
        """Numbers [K] that a cut takes; of numbers that are a `shape` laid end to end, of its last axis."""
        key = id(node.tensor), cut, shape
        if key not in self._made:
            values = dequantize(node.tensor).reshape(shape or node.tensor.shape)
            part = np.concatenate([values[..., a:b] for a, b in cut], axis=-1)
            self._made[key] = constant(part.reshape(-1), node.name)
        return self._made[key]

    def state(self, node: Node, axis: int, cut: Cut) -> Node:
        """The states of some heads or channels, which are an axis of it."""
        key = id(node), axis, cut
        if key not in self._made:
            attrs = MappingProxyType({**node.attrs, "part": cut})
            shape = (*node.shape[:axis], size_of(cut), *node.shape[axis + 1 :])
            self._made[key] = Node("state", (), shape, node.dtype, attrs, node.name)
        return self._made[key]

    def cache(self, node: Node, cut: Cut) -> Node:
        """The cache of some heads."""
        key = id(node), cut
        if key not in self._made:
            attrs = {**node.attrs, "part": cut}
            if (static := attrs.get("static")) is not None:
                attrs["static"] = np.concatenate([static[a:b] for a, b in cut])
            shape = (node.shape[0], size_of(cut), *node.shape[2:])
            self._made[key] = Node("cache", (), shape, node.dtype, MappingProxyType(attrs), node.name)
        return self._made[key]
