"""Which kernel encodes a format, and how wide it searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from octavo.formats import BlockFormat
from octavo.quantizers.encoding.kernels.recipe import Recipe
from octavo.quantizers.encoding.packing import block_layout

SPREAD = {False: 0.25, True: 2.0}
"""`Recipe.spread` without importance weights and with them."""

Search = Literal["affine", "one_affine", "symmetric", "one_scale", "exponent"]


@dataclass(frozen=True)
class Width:
    """How wide a search is: see `Recipe`. `below` is where the first guesses begin, by the number of levels."""

    steps: int
    below: float
    above: float
    trials: int
    refits: int
    reach: int


WIDTHS: dict[Search, Width] = {
    "affine": Width(18, 0.15, 1.0, trials=2, refits=2, reach=2),
    "one_affine": Width(32, 0.15, 1.0, trials=1, refits=2, reach=0),
    "symmetric": Width(18, 0.25, 1.0, trials=6, refits=2, reach=2),
    "one_scale": Width(28, 0.17, 1.0, trials=1, refits=2, reach=0),
    "exponent": Width(1, 0.0, 0.0, trials=3, refits=0, reach=0),
}


def extremes_rule(fmt: BlockFormat) -> Literal["peak", "range", "largest"] | None:
    """How the reference takes scales from a block's extremes, for one-level integer codes; else None."""
    if fmt.table or fmt.super != fmt.group:
        return None
    if fmt.has_min:
        return "range"
    return "largest" if fmt.bits == 8 else "peak"


def search_of(fmt: BlockFormat) -> Search:
    """The search that a block format's scales want."""
    one_level = fmt.super == fmt.group
    if fmt.has_min:
        return "one_affine" if one_level else "affine"
    if not one_level:
        return "symmetric"
    return "one_scale" if block_layout(fmt).scale_at >= 0 else "exponent"


def make_recipe(fmt: BlockFormat, *, weighted: bool) -> Recipe:
    """What the kernel of `search_of` is made for."""
    search, layout = search_of(fmt), block_layout(fmt)
    width = WIDTHS[search]
    low, high = _levels(fmt)
    span = (high - low) / ((1 << fmt.bits) - 1)  # levels from one code to the next
    first = -span * (0.5 + width.below * (high - low if fmt.has_min else -low) / span)
    step = (span * width.above - first) / max(1, width.steps - 1)
    two_levels = (1 << fmt.scale_bits) - 1 if fmt.has_min else 1 << max(0, fmt.scale_bits - 1)
    spread = None if search == "exponent" else SPREAD[weighted]
    return Recipe(low, high, fmt.table, fmt.group, fmt.super // fmt.group, two_levels if fmt.scale_bits else 0,
                  fmt.has_min, weighted, spread, width.steps, first, step, width.trials, width.refits, width.reach,
                  layout)


def _levels(fmt: BlockFormat) -> tuple[int, int]:
    """The lowest and the highest level of a code."""
    if fmt.table:
        return min(fmt.table), max(fmt.table)
    return -fmt.offset, (1 << fmt.bits) - 1 - fmt.offset


def search_kernel(fmt: BlockFormat, *, weighted: bool) -> Any:
    """The compiled kernel that searches for a format's scales."""
    from octavo.quantizers.encoding.kernels import affine, symmetric

    kernels = {
        "affine": affine.affine_kernel,
        "one_affine": affine.one_affine_kernel,
        "symmetric": symmetric.symmetric_kernel,
        "one_scale": symmetric.one_scale_kernel,
        "exponent": symmetric.exponent_kernel,
    }
    return kernels[search_of(fmt)](make_recipe(fmt, weighted=weighted))
