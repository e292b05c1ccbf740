# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Scales of formats without minima: x = d * sc * level, with sc signed, or x = d * level where there is one level only.

Which sign a group's scale has matters, since there is one more code below zero than above: guesses send the value of
largest magnitude near the lowest level, then near the highest. A least squares fit for each guess gives the group its
scale; the super-block's d is tried for the largest of these, for the largest value at the lowest level, and from a few
sides of both, with the integers around each group's wish; then it is fitted to the codes that came out.
"""

from __future__ import annotations

from typing import Any

from octavo.jit.compile import inner, kernels
from octavo.jit.simd import add_exact, fma, load_f32x16, maximum, mul_exact, splat, sub_exact
from octavo.quantizers.encoding.kernels.recipe import Recipe
from octavo.quantizers.encoding.kernels.search_lanes import (
    clamp_round,
    exponent,
    magnitude,
    max_within,
    min_within,
    minimum,
    sum_within,
    to_level,
    two_to,
    where_less,
)
from octavo.quantizers.encoding.kernels.tile import BEYOND, SEARCH, encode_tiles, half, ratio


def _sums(recipe: Recipe) -> Any:
    """A function (values, weights, inverse) -> sums of w q x and w q^2 for q = level(x * inverse)."""
    group, level = recipe.group, to_level(recipe.low, recipe.high, recipe.table)

    def sums(values, weights, inverse):
        wqx_sum, wqq_sum = splat(0.0), splat(0.0)
        for i in range(group):
            x = load_f32x16(values + 64 * i)  # [16]
            q = level(mul_exact(x, inverse))
            wq = mul_exact(load_f32x16(weights + 64 * i), q)
            wqx_sum, wqq_sum = fma(wq, x, wqx_sum), fma(wq, q, wqq_sum)
        return wqx_sum, wqq_sum

    return inner(sums, recipe)


def _error(recipe: Recipe) -> Any:
    """A function (values, weights, scale) -> the weighted squared error of the best codes for a scale."""
    group, level = recipe.group, to_level(recipe.low, recipe.high, recipe.table)

    def error(values, weights, scale):
        total, inverse = splat(0.0), ratio(splat(1.0), scale)
        for i in range(group):
            x = load_f32x16(values + 64 * i)  # [16]
            off = sub_exact(mul_exact(scale, level(mul_exact(x, inverse))), x)
            total = fma(mul_exact(load_f32x16(weights + 64 * i), off), off, total)
        return total

    return inner(error, recipe)


def _peak(group: int) -> Any:
    """A function (values) -> each lane's value of largest magnitude."""

    def peak(values):
        least, most = splat(0.0), splat(0.0)
        for i in range(group):
            x = load_f32x16(values + 64 * i)  # [16]
            least, most = minimum(least, x), maximum(most, x)
        return where_less(most, sub_exact(splat(0.0), least), least, most)

    return inner(peak, group)


def _farthest(supers: int) -> Any:
    """A function (x) -> of each super-block's lanes the value of largest magnitude."""

    def farthest(x):
        least, most = min_within(x, supers), max_within(x, supers)
        return where_less(most, sub_exact(splat(0.0), least), least, most)

    return inner(farthest, supers)


def _fit(recipe: Recipe) -> Any:
    """A function (values, weights) -> the scale of each lane: the least squares fits' best."""
    low, high, sums, peak = float(recipe.low), float(recipe.high), _sums(recipe), _peak(recipe.group)
    steps, first, step = recipe.fit_steps, recipe.fit_first, recipe.fit_step

    def fit(values, weights):
        unit = ratio(splat(1.0), peak(values))
        scale, gain = splat(0.0), splat(0.0)
        for i in range(2 * steps):
            beyond = first + (i // 2) * step
            inverse = mul_exact(unit, splat(high + beyond if i % 2 else low - beyond))
            wqx, wqq = sums(values, weights, inverse)
            s = ratio(wqx, wqq)
            g = mul_exact(s, wqx)
            scale, gain = where_less(gain, g, s, scale), maximum(gain, g)
        return scale

    return inner(fit, recipe)


def _search(recipe: Recipe) -> Any:
    """A function (values, weights, d, sc, reach) -> error and integer of the best sc within reach."""
    error, top = _error(recipe), float(recipe.top)

    def search(values, weights, d, sc, reach):
        best, best_sc = splat(3e38), sc
        for a in range(-reach, reach + 1):
            tried = minimum(maximum(add_exact(sc, splat(float(a))), splat(-top)), splat(top - 1.0))
            e = error(values, weights, mul_exact(d, tried))
            best_sc = where_less(e, best, tried, best_sc)
            best = minimum(e, best)
        return best, best_sc

    return inner(search, recipe)


def _refit(recipe: Recipe) -> Any:
    """A function (values, weights, up, d, sc) -> the d that fits the codes of these best."""
    supers, sums = recipe.supers, _sums(recipe)

    def refit(values, weights, up, d, sc):
        wqx, wqq = sums(values, weights, ratio(splat(1.0), mul_exact(d, sc)))
        sx, ss = sum_within(mul_exact(sc, wqx), supers), sum_within(mul_exact(mul_exact(sc, sc), wqq), supers)
        return where_less(d, splat(BEYOND), half(ratio(sx, ss), up), d)

    return inner(refit, recipe)


@kernels(SEARCH)
def symmetric_kernel(recipe: Recipe) -> Any:
    """For formats with two levels: scales of groups in units of d."""
    fit, search, refit = _fit(recipe), _search(recipe), _refit(recipe)
    farthest, peak_of = _farthest(recipe.supers), _peak(recipe.group)
    supers, top, low = recipe.supers, float(recipe.top), float(recipe.low)
    trials, rounds, reach = recipe.trials, recipe.trials + recipe.refits, recipe.reach

    def two_levels(values, weights, up):
        none, scale = splat(0.0), fit(values, weights)
        peak, extreme = farthest(scale), mul_exact(farthest(peak_of(values)), splat(1.0 / low))
        total, d, sc = splat(3e38), splat(BEYOND), none
        for i in range(rounds):
            if i < trials:
                try_d = half(mul_exact(extreme if i % 2 else peak, splat(-1.0 / (top - i // 2 * 2.0))), up)
                try_sc = clamp_round(ratio(scale, try_d), splat(-top), splat(top - 1.0))
                e, try_sc = search(values, weights, try_d, try_sc, 1)
            else:
                try_d = refit(values, weights, up, d, sc)
                e, try_sc = search(values, weights, try_d, sc, reach)
            e = sum_within(e, supers)
            d, sc, total = where_less(e, total, try_d, d), where_less(e, total, try_sc, sc), minimum(e, total)
        return d, sc, none, none, ratio(splat(1.0), mul_exact(d, sc)), none

    return encode_tiles(recipe, inner(two_levels, recipe))


@kernels(SEARCH)
def one_scale_kernel(recipe: Recipe) -> Any:
    """For formats with one level: the fits' best scale, and what fits the codes of its f16."""
    fit, error, sums, refits = _fit(recipe), _error(recipe), _sums(recipe), recipe.refits

    def one_level(values, weights, up):
        none, one = splat(0.0), splat(1.0)
        tried = half(fit(values, weights), up)
        size = magnitude(tried)
        d = where_less(size, splat(BEYOND), none, tried)
        best = where_less(size, splat(BEYOND), error(values, weights, none), splat(-1.0))
        for _ in range(refits + 1):
            e = error(values, weights, tried)
            d, best = where_less(e, best, tried, d), minimum(e, best)
            wqx, wqq = sums(values, weights, ratio(one, d))
            tried = half(ratio(wqx, wqq), up)
        return d, none, none, none, ratio(one, d), none

    return encode_tiles(recipe, inner(one_level, recipe))


@kernels(SEARCH)
def exponent_kernel(recipe: Recipe) -> Any:
    """For formats with one level whose scale is a power of two, stored as its exponent + 128.

    Tries the scale that brings the largest magnitude into the last level's octave, 2x and 0.5x that, and keeps the
    best.
    """
    error, last = _error(recipe), float(recipe.high.bit_length() - 1)

    def power_of_two(values, weights, up):
        none = splat(0.0)
        bias = sub_exact(splat(128.0), exponent(up))
        best, byte = splat(3e38), none
        for i in range(3):
            tried = clamp_round(add_exact(bias, splat(i - 1.0 - last)), none, splat(254.0))
            e = error(values, weights, two_to(sub_exact(tried, bias)))
            byte, best = where_less(e, best, tried, byte), minimum(e, best)
        return none, byte, none, none, two_to(sub_exact(bias, byte)), none

    return encode_tiles(recipe, inner(power_of_two, recipe))
