# mypy: allow-untyped-defs
"""Sums, products and quotients."""

from octavo.graph.pointwise.expression import m, pointwise


@pointwise(fold="add", spreads=True)
def add(a, b):
    """a + b."""
    return a + b


@pointwise(fold="mul", spreads=True)
def mul(a, b):
    """a * b."""
    return a * b


@pointwise(
    fold="through", integers=["positions"], spreads=True, numbers={"length": 64, "factor": 0.1, "offset": 1},
    allowed=lambda length, factor, offset: length > 0 and offset >= 0,
)
def scale_by_position(x, positions, length, factor, offset):
    """x * (1 + factor * log(1 + floor((positions + offset) / length))), positions int."""
    return x * (1 + factor * m.log(1.0 + (positions + offset) // length))


@pointwise(fold="keep", integers=["ids"], numbers={"by": 3}, allowed=lambda by: by > 0)
def floor_divide(ids, by):
    """ids // by, of integers, none below 0."""
    return ids // by
