"""Bytes of the system's memory that a part of a model takes, before any of it is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.backends.cpu.weights.layout import ROWS, STEP
from octavo.backends.cpu.weights.pack import smallest_layout
from octavo.formats import QTensor
from octavo.graph.node import Node


def weight_bytes(nodes: Sequence[Node]) -> int:
    """Bytes of the weights that `nodes` read, as they are packed; each once."""
    return sum(map(packed_bytes, weights_of(nodes)))


def weights_of(nodes: Sequence[Node]) -> list[QTensor]:
    """The weights that `nodes` read, each once."""
    leaves = (i for n in nodes for i in n.inputs if i.op == "weight")
    return list({id(leaf.tensor): leaf.tensor for leaf in leaves}.values())


def packed_bytes(tensor: QTensor) -> int:
    """Bytes of a weight in its kernels' layout. Scales may turn out to need more, when they are read: never less."""
    if len(tensor.shape) == 1:
        return 4 * tensor.size
    fmt, (*outer, n, k) = tensor.format, tensor.shape
    tiles = math.prod(outer) * -(-n // ROWS)
    if fmt.is_float or fmt.per_row or (fmt.number is not None and not outer):
        return tiles * ROWS * fmt.row_bytes(k)
    if fmt.number is not None or k % STEP:
        return tiles * ROWS * k * 4
    return tiles * smallest_layout(fmt).tile_bytes(k)
