"""Graphs of op cases as in `op_graphs`, for ops on several streams of a token and activations that few models have."""

from __future__ import annotations

from octavo.bench.op_graphs import Sketch, graph
from octavo.graph.node import Node


@graph
def keep_largest(s: Sketch) -> Node:
    return s.builder.keep_largest(s.given("x", s["k"]), 0.5)


@graph
def sparse_shares(s: Sketch) -> Node:
    """So tolerant that some values are near."""
    x = s.given("x", s["k"])
    return s.builder.sparse_shares(x, s.builder.top_k(x, s["used"]), 0.3)


@graph
def predict_streams(s: Sketch) -> Node:
    return s.builder.predict_streams(s.given("x", s["streams"], s["k"]), s.given("coefs", s["streams"] ** 2))


@graph
def correct_streams(s: Sketch) -> Node:
    x, coefs = s.given("x", s["streams"], s["k"]), s.given("coefs", s["streams"])
    return s.builder.correct_streams(x, s.given("first", s["k"]), coefs)


@graph
def add_to_others(s: Sketch) -> Node:
    return s.builder.add_to_others(s.given("x", s["streams"], s["k"]), s.given("row", s["k"]))


@graph
def as_large_as(s: Sketch) -> Node:
    """Some streams are smaller than the least, which their mean square is then."""
    return s.builder.as_large_as(s.given("x", s["streams"], s["k"]), s.given("like", s["k"]), 0.333)
