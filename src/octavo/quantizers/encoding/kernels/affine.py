# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Scales and minima of formats that have both: x = d * sc * q - dmin * m, q from 0 to `high`.

A weighted least squares fit for each of a row of first guesses gives a group its scale and minimum; the super-block's d
and dmin are then tried from a few sides, integers around each group's wish are searched together, and d and dmin are
fitted to the codes that came out.
"""

from __future__ import annotations

from typing import Any

from octavo.jit.compile import inner, kernels
from octavo.jit.simd import add_exact, div_exact, fma, load_f32x16, maximum, mul_exact, splat, sub_exact
from octavo.quantizers.encoding.kernels.recipe import Recipe
from octavo.quantizers.encoding.kernels.search_lanes import (
    clamp_round,
    magnitude,
    max_within,
    minimum,
    sum_within,
    to_level,
    where_less,
)
from octavo.quantizers.encoding.kernels.tile import BEYOND, SEARCH, encode_tiles, half, ratio


def _sums(recipe: Recipe) -> Any:
    """A function (values, weights, inverse, shift) -> sums of wq, wqq, wqx for q = level((x + shift) * inverse)."""
    group, level = recipe.group, to_level(recipe.low, recipe.high, None)

    def sums(values, weights, inverse, shift):
        wq_sum, wqq_sum, wqx_sum = splat(0.0), splat(0.0), splat(0.0)
        shifted = mul_exact(shift, inverse)
        for i in range(group):
            x = load_f32x16(values + 64 * i)  # [16]
            q = level(fma(x, inverse, shifted))
            wq = mul_exact(load_f32x16(weights + 64 * i), q)
            wq_sum = add_exact(wq_sum, wq)
            wqq_sum = fma(wq, q, wqq_sum)
            wqx_sum = fma(wq, x, wqx_sum)
        return wq_sum, wqq_sum, wqx_sum

    return inner(sums, recipe)


def _error(recipe: Recipe) -> Any:
    """A function (values, weights, scale, shift) -> the weighted squared error of the best codes for them."""
    group, level = recipe.group, to_level(recipe.low, recipe.high, None)

    def error(values, weights, scale, shift):
        total, inverse = splat(0.0), ratio(splat(1.0), scale)
        for i in range(group):
            x = add_exact(load_f32x16(values + 64 * i), shift)  # [16]
            off = sub_exact(mul_exact(scale, level(mul_exact(x, inverse))), x)
            total = fma(mul_exact(load_f32x16(weights + 64 * i), off), off, total)
        return total

    return inner(error, recipe)


def _fit(recipe: Recipe) -> Any:
    """A function (values, weights) -> scale and minimum of each lane: the least squares fits' best."""
    group, high, signed_min = recipe.group, float(recipe.high), recipe.top == 0
    sums, solve = _sums(recipe), _solve(recipe)
    steps, first, step = recipe.fit_steps, recipe.fit_first, recipe.fit_step

    def fit(values, weights):
        low, top = load_f32x16(values), load_f32x16(values)
        w_sum, wx_sum = splat(0.0), splat(0.0)
        for i in range(group):
            x, w = load_f32x16(values + 64 * i), load_f32x16(weights + 64 * i)  # [16]
            low, top = minimum(low, x), maximum(top, x)
            w_sum, wx_sum = add_exact(w_sum, w), fma(w, x, wx_sum)
        none = splat(0.0)
        if not signed_min:
            low = minimum(low, none)
        span = sub_exact(top, low)
        per_step = ratio(splat(1.0), span)
        scale, shift = none, sub_exact(none, low)
        gain = none
        if signed_min:
            shift = ratio(sub_exact(none, wx_sum), w_sum)
        else:
            shift = maximum(ratio(sub_exact(none, wx_sum), w_sum), none)
        gain = mul_exact(shift, mul_exact(shift, w_sum))
        for i in range(steps + 1):
            if i < steps:
                inverse, offset = mul_exact(per_step, splat(high + first + i * step)), sub_exact(none, low)
            else:
                inverse, offset = ratio(splat(1.0), scale), shift
            wq, wqq, wqx = sums(values, weights, inverse, offset)
            s, m, g = solve(w_sum, wx_sum, wq, wqq, wqx)
            scale, shift = where_less(gain, g, s, scale), where_less(gain, g, m, shift)
            gain = maximum(gain, g)
        return scale, shift

    return inner(fit, recipe)


def _solve(recipe: Recipe) -> Any:
    """A function (w, w x, w q, w q^2, w q x) of sums -> scale, minimum and by how much they lower the error."""
    signed_min = recipe.top == 0

    def solve(w, wx, wq, wqq, wqx):
        none = splat(0.0)
        product = mul_exact(w, wqq)
        det = sub_exact(product, mul_exact(wq, wq))
        over = div_exact(splat(1.0), det)
        usable = mul_exact(product, splat(1e-5))
        s = mul_exact(sub_exact(mul_exact(w, wqx), mul_exact(wx, wq)), over)
        m = mul_exact(sub_exact(mul_exact(wq, wqx), mul_exact(wqq, wx)), over)
        s = where_less(usable, det, s, none)
        m = where_less(usable, det, m, splat(-1.0) if not signed_min else none)
        alone = ratio(wqx, wqq)
        if not signed_min:
            s, m = where_less(m, none, alone, s), maximum(m, none)
        gain = sub_exact(mul_exact(s, wqx), mul_exact(m, wx))
        return s, m, where_less(none, s, gain, none)

    return inner(solve, recipe)


def _search(recipe: Recipe) -> Any:
    """A function (values, weights, d, dmin, sc, m, reach) -> error and integers of the best of a square around."""
    error, top = _error(recipe), float(recipe.top)

    def search(values, weights, d, dmin, sc, m, reach):
        low, high = splat(0.0), splat(top)
        best, best_sc, best_m = splat(3e38), sc, m
        for a in range(-reach, reach + 1):
            for b in range(-reach, reach + 1):
                try_sc = minimum(maximum(add_exact(sc, splat(float(a))), low), high)
                try_m = minimum(maximum(add_exact(m, splat(float(b))), low), high)
                e = error(values, weights, mul_exact(d, try_sc), mul_exact(dmin, try_m))
                best_sc, best_m = where_less(e, best, try_sc, best_sc), where_less(e, best, try_m, best_m)
                best = minimum(e, best)
        return best, best_sc, best_m

    return inner(search, recipe)


def _refit(recipe: Recipe) -> Any:
    """A function (values, weights, up, d, dmin, sc, m) -> d and dmin that fit the codes of these best."""
    supers, group, sums, signed_min = recipe.supers, recipe.group, _sums(recipe), recipe.top == 0

    def refit(values, weights, up, d, dmin, sc, m):
        none = splat(0.0)
        wq, wqq, wqx = sums(values, weights, ratio(splat(1.0), mul_exact(d, sc)), mul_exact(dmin, m))
        w, wx = none, none
        for i in range(group):
            v = load_f32x16(weights + 64 * i)  # [16]
            w, wx = add_exact(w, v), fma(v, load_f32x16(values + 64 * i), wx)
        ss = sum_within(mul_exact(mul_exact(sc, sc), wqq), supers)
        sm = sum_within(mul_exact(mul_exact(sc, m), wq), supers)
        mm = sum_within(mul_exact(mul_exact(m, m), w), supers)
        sx = sum_within(mul_exact(sc, wqx), supers)
        mx = sum_within(mul_exact(m, wx), supers)
        det = sub_exact(mul_exact(ss, mm), mul_exact(sm, sm))
        usable = mul_exact(mul_exact(ss, mm), splat(1e-5))
        over = div_exact(splat(1.0), det)
        new_d = where_less(usable, det, mul_exact(sub_exact(mul_exact(mm, sx), mul_exact(sm, mx)), over), ratio(sx, ss))
        new_m = where_less(usable, det, mul_exact(sub_exact(mul_exact(sm, sx), mul_exact(ss, mx)), over), none)
        if not signed_min:
            new_m = maximum(new_m, none)
        return where_less(d, splat(BEYOND), half(maximum(new_d, none), up), d), half(new_m, up)

    return inner(refit, recipe)


@kernels(SEARCH)
def affine_kernel(recipe: Recipe) -> Any:
    """For formats with two levels: scales and minima of groups, in units of d and dmin."""
    fit, search, refit = _fit(recipe), _search(recipe), _refit(recipe)
    supers, top = recipe.supers, float(recipe.top)
    trials, rounds, reach = recipe.trials, recipe.trials + recipe.refits, recipe.reach

    def two_levels(values, weights, up):
        none = splat(0.0)
        scale, shift = fit(values, weights)
        most, deepest = max_within(scale, supers), max_within(shift, supers)
        total = splat(3e38)
        d, dmin, sc, m = splat(BEYOND), none, none, none
        for i in range(rounds):
            if i < trials:
                try_d = half(mul_exact(most, splat(1.0 / (top - 3.0 * i))), up)
                try_min = half(mul_exact(deepest, splat(1.0 / (top - 3.0 * i))), up)
                try_sc = clamp_round(ratio(scale, try_d), none, splat(top))
                try_m = clamp_round(ratio(shift, try_min), none, splat(top))
                e, try_sc, try_m = search(values, weights, try_d, try_min, try_sc, try_m, 1)
            else:
                try_d, try_min = refit(values, weights, up, d, dmin, sc, m)
                e, try_sc, try_m = search(values, weights, try_d, try_min, sc, m, reach)
            e = sum_within(e, supers)
            d, dmin = where_less(e, total, try_d, d), where_less(e, total, try_min, dmin)
            sc, m = where_less(e, total, try_sc, sc), where_less(e, total, try_m, m)
            total = minimum(e, total)
        return d, sc, dmin, m, ratio(splat(1.0), mul_exact(d, sc)), mul_exact(dmin, m)

    return encode_tiles(recipe, inner(two_levels, recipe))


@kernels(SEARCH)
def one_affine_kernel(recipe: Recipe) -> Any:
    """For formats with one level: the fits' best scale and minimum, and what fits the codes of their f16s."""
    fit, error, refit, refits = _fit(recipe), _error(recipe), _refit(recipe), recipe.refits

    def one_level(values, weights, up):
        none, one = splat(0.0), splat(1.0)
        scale, shift = fit(values, weights)
        try_d, try_m = half(scale, up), half(shift, up)
        size = maximum(try_d, magnitude(try_m))
        d, m = where_less(size, splat(BEYOND), none, size), none
        best = where_less(size, splat(BEYOND), error(values, weights, none, none), splat(-1.0))
        for _ in range(refits + 1):
            e = error(values, weights, try_d, try_m)
            d, m, best = where_less(e, best, try_d, d), where_less(e, best, try_m, m), minimum(e, best)
            try_d, try_m = refit(values, weights, up, d, m, one, one)
        return d, none, m, none, ratio(one, d), m

    return encode_tiles(recipe, inner(one_level, recipe))
