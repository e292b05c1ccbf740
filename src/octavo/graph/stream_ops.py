"""Ops on several streams of a token, of which a layer sees one (AltUp, arXiv 2301.13310)."""

from __future__ import annotations

from octavo.graph.node import DType, Node, Shape
from octavo.graph.ops import op, require


@op
def predict_streams(x: Node, coefs: Node) -> tuple[Shape, DType]:
    """x [T, S, D], coefs [T, S * S] -> [T, S, D]: x[t, s] + the sum over r of coefs[t, s * S + r] * x[t, r]."""
    streams = x.shape[1] if len(x.shape) == 3 else 0
    assert isinstance(streams, int)
    require(coefs.shape == (x.shape[0], streams**2), "predict_streams", "x [T, S, D], coefs [T, S * S]", x, coefs)
    return x.shape, "f32"


@op
def correct_streams(x: Node, first: Node, coefs: Node) -> tuple[Shape, DType]:
    """x [T, S, D], first [T, D], coefs [T, S] -> [T, S, D]: x[t, s] + (1 + coefs[t, s]) * (first[t] - x[t, 0])."""
    fits = len(x.shape) == 3 and first.shape == (x.shape[0], x.shape[2]) and coefs.shape == x.shape[:2]
    require(fits, "correct_streams", "x [T, S, D], first [T, D], coefs [T, S]", x, first, coefs)
    return x.shape, "f32"


@op
def add_to_others(x: Node, row: Node) -> tuple[Shape, DType]:
    """x [T, S, D], row [T, D] -> [T, S, D]: x, with row[t] added to all but the first of a token's streams."""
    require(_same_rows(x, row), "add_to_others", "x [T, S, D], row [T, D]", x, row)
    return x.shape, "f32"


@op
def as_large_as(x: Node, like: Node, *, least: float) -> tuple[Shape, DType]:
    """x [T, S, D], like [T, D] -> [T, S, D]: x[t, s] * sqrt(mean(like[t]^2) / max(mean(x[t, s]^2), least))."""
    require(_same_rows(x, like), "as_large_as", "x [T, S, D], like [T, D]", x, like)
    return x.shape, "f32"


def _same_rows(x: Node, row: Node) -> bool:
    return len(x.shape) == 3 and row.shape == (x.shape[0], x.shape[2])
