"""Ops on rows of logits, for the choice of tokens. Models do not use them."""

from __future__ import annotations

from octavo.graph.node import DType, Node, Shape
from octavo.graph.ops import op, require


@op
def top_candidates(x: Node, *, k: int) -> tuple[Shape, DType]:
    """x [T, N] -> int [T, 1 + 2k], all that the choice of a token needs, in one value.

    How many values are not finite; the places of the k largest, largest first, of equals the lower place first; and the
    bits of these values, as float32.
    """
    width = x.shape[1]
    require(isinstance(width, int) and 1 <= k <= width, "top_candidates", "at most as many candidates as values", x)
    return (x.shape[0], 1 + 2 * k), "i32"


@op
def draw(found: Node, settings: Node) -> tuple[Shape, DType]:
    """found int [T, 1 + 2K] of `top_candidates`, settings int [T, 12] -> int [T, 3]: a token of each row's candidates.

    How many values are not finite; the token; how many candidates are not known. The settings are six float64 of
    two words each: how many candidates count, top_p, min_p, temperature, a uniform random number, and how many tokens
    are known.
    """
    fits = len(found.shape) == 2 and settings.shape == (found.shape[0], 12)
    require(fits, "draw", "candidates and 12 words a row", found, settings)
    return (found.shape[0], 3), "i32"


@op
def log_sum_exp(x: Node) -> tuple[Shape, DType]:
    """x [T, N] -> [T, 1]: ln of the sum of exp(x) over a row."""
    require(len(x.shape) == 2, "log_sum_exp", "rows of values", x)
    return (x.shape[0], 1), "f32"


@op
def adjust(x: Node, places: Node, changes: Node) -> tuple[Shape, DType]:
    """x [T, N], places int [A, 2], changes [A, 2] -> x, changed in A places, each a row and a column, none twice.

    A change is (scale, add): v becomes v / scale where it is over 0, else v * scale, and `add` is added. Row -1: none.
    """
    fits = len(x.shape) == len(places.shape) == 2 and places.shape == changes.shape and places.shape[1] == 2
    require(fits, "adjust", "places and changes are pairs of numbers", x, places, changes)
    return x.shape, "f32"


@op
def mask(x: Node, rows: Node, masks: Node) -> tuple[Shape, DType]:
    """x [T, N], rows int [M], masks int [M, ceil(N / 32)] -> x, with -inf where a bit is not set.

    For column j of row rows[i] that is bit j % 32 of masks[i, j // 32]. Row -1: no change.
    """
    width = x.shape[1]
    fits = isinstance(width, int) and masks.shape == (rows.shape[0], -(-width // 32))
    require(fits, "mask", "a bit for each value of a row", x, rows, masks)
    return x.shape, "f32"
