"""Activations that few models have."""

from __future__ import annotations

from octavo.graph.node import DType, Node, Shape
from octavo.graph.ops import op


@op
def keep_largest(x: Node, *, spread: float) -> tuple[Shape, DType]:
    """max(0, x - mean(x) - spread * std(x)) over the last axis, where std(x)^2 is the mean of (x - mean(x))^2.

    Of values that are distributed normally as large a part stays as lies over `spread` standard deviations.
    """
    return x.shape, "f32"
