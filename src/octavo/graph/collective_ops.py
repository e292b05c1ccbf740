"""Ops that ranks run together: each has a part of a model, and they exchange what they computed with it.

All ranks run the same ones in the same order. What a rank has of a value is in no other graph, so shapes of inputs may
differ from rank to rank where `parts` says so.
"""

from __future__ import annotations

from octavo.formats.part import Cut, size_of
from octavo.graph.node import DType, Node, Shape
from octavo.graph.ops import op, require

COLLECTIVES = frozenset({"all_reduce", "all_gather", "all_max"})


@op
def all_reduce(x: Node, *terms: Node) -> tuple[Shape, DType]:
    """x [T, ...] of each rank -> [T, ...], their sum, and terms of its shape, which all ranks have, added in order."""
    fits = all((term.shape, term.dtype) == (x.shape, x.dtype) for term in terms)
    require(x.dtype == "f32" and fits, "all_reduce", "sums are of float32, and terms have their shape", x, *terms)
    return x.shape, "f32"


@op
def all_max(x: Node) -> tuple[Shape, DType]:
    """x [T, ...] of each rank -> [T, ...], the largest value of all in each place."""
    require(x.dtype == "f32", "all_max", "largest values are of float32", x)
    return x.shape, "f32"


@op
def merge_candidates(x: Node, *, k: int, firsts: tuple[int, ...]) -> tuple[Shape, DType]:
    """x int [T, R * (1 + 2k)], what `top_candidates` gives of R parts of a row, side by side -> int [T, 1 + 2k], what
    it gives of the row; `firsts` are the places where the parts begin."""
    fits = len(x.shape) == 2 and x.shape[1] == len(firsts) * (1 + 2 * k)
    require(fits, "merge_candidates", f"{len(firsts)} parts of {1 + 2 * k} numbers", x)
    return (x.shape[0], 1 + 2 * k), "i32"


@op
def local_places(places: Node, *, first: int, count: int) -> tuple[Shape, DType]:
    """places int [A, 2], rows and columns -> [A, 2], as `adjust` takes them for columns first to first + count - 1.

    Places in other columns have the row -1.
    """
    require(places.shape[1:] == (2,) and count > 0, "local_places", "pairs of numbers, and some columns", places)
    return places.shape, "i32"


@op
def largest_magnitude(x: Node) -> tuple[Shape, DType]:
    """x [..., K] -> [..., 1]: the largest |x| of each row, which ranks that have parts of it agree on by `all_max`."""
    return (*x.shape[:-1], 1), "f32"


@op
def all_gather(x: Node, *, axis: int, rank: int, parts: tuple[Cut, ...]) -> tuple[Shape, DType]:
    """x, of each rank r its parts[r] of an axis, end to end -> the whole axis.

    `rank` is whose graph this is. Parts of several ranks may be the same places, which have the same values then.
    """
    fits = 0 < axis < len(x.shape) and x.shape[axis] == size_of(parts[rank]) and x.dtype in ("f32", "i32")
    require(fits, "all_gather", f"rank {rank} has {parts[rank]} of axis {axis}", x)
    whole = max(stop for cut in parts for _, stop in cut)
    return (*x.shape[:axis], whole, *x.shape[axis + 1 :]), x.dtype
