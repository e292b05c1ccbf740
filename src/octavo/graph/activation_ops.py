"""Activations that few models have."""

from __future__ import annotations

from octavo.graph.node import DType, Node, Shape
from octavo.graph.ops import op, require


@op
def clamp(x: Node, *, low: float, high: float) -> tuple[Shape, DType]:
    """max(low, min(high, x)); a ReLU where they are 0 and infinity."""
    require(low <= high, "clamp", f"low {low:g} is not over high {high:g}", x)
    return x.shape, "f32"


@op
def keep_largest(x: Node, *, spread: float) -> tuple[Shape, DType]:
    """max(0, x - mean(x) - spread * std(x)) over the last axis, where std(x)^2 is the mean of (x - mean(x))^2.

    Of values that are distributed normally as large a part stays as lies over `spread` standard deviations.
    """
    return x.shape, "f32"


@op
def relu_squared(x: Node) -> tuple[Shape, DType]:
    """max(0, x)^2 (arXiv 2109.08668)."""
    return x.shape, "f32"


@op
def xielu(x: Node, *, positive: float, negative: float, beta: float, least: float) -> tuple[Shape, DType]:
    """beta * x + positive * x^2 over 0, and beta * x + negative * (exp(min(x, least)) - 1 - x) elsewhere.

    arXiv 2411.13010.
    """
    return x.shape, "f32"
