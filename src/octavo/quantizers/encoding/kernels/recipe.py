# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What an encoder's kernel is specialised on; no format's name among it."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.quantizers.encoding.packing import BlockLayout

LEAST_IMPORTANCE = 1e-6
"""The least importance, as a share of the mean: that of inputs which were never active in the calibration text."""


@dataclass(frozen=True)
class Recipe:
    """A format as a search for scales sees it.

    low, high   levels that a scale multiplies: of integer codes, or the ends of `table`
    table       the levels, ascending, of a non-linear code
    group       values that share a scale
    supers      groups that share floating scales: as many lanes
    top         the largest small scale: 2^bits - 1, or of signed ones (no minima) 2^(bits - 1); 0 with one level
    has_min     there are minima
    weighted    there are importance weights
    spread      a weight is sqrt(x^2 + spread * mean x^2) times the importance; None: the importance alone
    fit_steps   first guesses of a group's scale: the span of its values over the span of levels, this widened by
    fit_first   fit_first, fit_first + fit_step and so on
    trials      first guesses of a super-block's scale: the largest wish over `top`, and over less than that
    refits      how often scales are fitted again to the codes that came out
    reach       how far around a group's integers is searched after that
    layout      how a block is put together
    """

    low: int
    high: int
    table: tuple[int, ...] | None
    group: int
    supers: int
    top: int
    has_min: bool
    weighted: bool
    spread: float | None
    fit_steps: int
    fit_first: float
    fit_step: float
    trials: int
    refits: int
    reach: int
    layout: BlockLayout
