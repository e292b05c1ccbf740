# mypy: allow-untyped-defs
"""What a rank computes of rows and experts of which it has some: those of others count as 0."""

from octavo.graph.pointwise.expression import m, pointwise


@pointwise(fold="keep", integers=["ids"], numbers={"first": 3, "count": 4}, allowed=lambda first, count: count > 0)
def local_ids(ids, first, count):
    """ids - first, of integers, and the nearest of 0 to count - 1 for those outside."""
    return m.maximum(m.minimum(ids - first, count - 1), 0)


@pointwise(
    fold="keep", integers=["ids"], spreads=True, numbers={"first": 3, "count": 4},
    allowed=lambda first, count: count > 0,
)
def keep_local(x, ids, first, count):
    """x where its id, an integer, is from `first` to first + count - 1, else 0."""
    return m.where(ids >= first, m.where(ids < first + count, x, 0.0), 0.0)
