"""Scales that searches choose: never worse than none, ones where nothing is to gain, and a repair of outliers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.calibrate.methods import (
    METHODS,
    FoldProducts,
    as_they_are,
    awq,
    best_of,
    clip,
    groups_of_weights,
    qqq,
    rows_of_weights,
    rptq,
    smoothquant,
    static_activations,
    static_scale,
    tensor_int8,
    tokens_int8,
    unless,
)
from octavo.calibrate.methods.rounding import Rounding
from octavo.errors import NonFiniteError, UsageError
from octavo.formats.spec import F32
from octavo.huggingface import scheme_weight

K = 128
W4 = groups_of_weights(4, 64)


def pair_of(
    seed: int, outliers: dict[int, float] | None = None, weight: Rounding = W4, tokens: int = 64
) -> FoldProducts:
    """Two products of random numbers; channels of `outliers` are larger by that factor, and their columns smaller."""
    rng = np.random.default_rng(seed)
    factors = np.ones(K, np.float32)
    factors[list(outliers or {})] = list((outliers or {}).values())
    weights = tuple((rng.normal(size=(n, K)) / factors).astype(np.float32) for n in (48, 16))
    inputs = (rng.normal(size=(tokens, K)) * factors).astype(np.float32)
    return FoldProducts(weights, inputs, weight, tokens_int8)


@pytest.mark.parametrize("method", METHODS)
def test_the_error_never_rises(method: str) -> None:
    for seed in range(4):
        pair = pair_of(seed, {3: 0.01} if seed % 2 else {5: 40.0})
        found = METHODS[method](pair)
        assert found.after <= found.before == pair.error(np.ones(K))
        assert found.after == pair.error(found.scales)
        assert (found.scales > 0).all()
        assert (found.setting is None) == (found.scales == 1).all()


@pytest.mark.parametrize("method", ["smoothquant", "qqq"])
def test_outliers_are_repaired(method: str) -> None:
    """A channel 100 times larger, its columns 100 times smaller: what a fold undoes."""
    rounding = rows_of_weights(8)
    clean, spoiled = pair_of(1, weight=rounding), pair_of(1, {7: 100.0, 90: 100.0}, rounding)
    found, usual = METHODS[method](spoiled), clean.error(np.ones(K))
    assert found.before > 20 * usual
    assert found.after < 1.2 * usual
    assert {7, 90} == set(np.argsort(-found.scales)[:2])


def test_of_several_ways_the_best_is_taken_where_it_is_worth_it() -> None:
    ways = {name: METHODS[name] for name in ("smoothquant", "qqq")}
    spoiled, even = (pair_of(1, outliers, rows_of_weights(8)) for outliers in ({7: 100.0, 90: 100.0}, {7: 3.0}))
    for most in (1.0, 0.5):
        found = best_of(ways, most)(spoiled)
        assert found.after < 0.1 * found.before
        assert found.how in ways
    some = best_of(ways)(even)
    assert 0.5 * some.before < some.after < some.before
    none = best_of(ways, 0.5)(even)
    assert (none.how, none.after) == ("ones", none.before)
    assert (none.scales == 1).all()


def test_clusters_of_channels_are_made_alike() -> None:
    """One scale for channels of four sizes: their clusters' scales are as far apart as they are."""
    sizes = np.repeat([1.0, 6.0, 40.0, 300.0], K // 4).astype(np.float32)
    rng = np.random.default_rng(3)
    inputs = (rng.normal(size=(64, K)) * sizes).astype(np.float32)
    weight = (rng.normal(size=(48, K)) / sizes).astype(np.float32)
    pair = FoldProducts((weight,), inputs, rows_of_weights(8), tensor_int8)
    found = rptq(pair, counts=(4,), exponents=(1.0,))
    assert len(np.unique(found.scales)) == 4
    largest = np.abs(inputs).max(axis=0).reshape(4, -1).max(axis=1)
    np.testing.assert_array_equal(found.scales.reshape(4, -1).max(axis=1), largest)
    assert found.after < found.before / 1000
    assert rptq(pair).after <= found.after


def test_a_static_scale_cuts_off_what_is_rare() -> None:
    rng = np.random.default_rng(4)
    inputs, weight = rng.normal(size=(256, K)).astype(np.float32), rng.normal(size=(48, K)).astype(np.float32)
    even = static_scale(inputs, [weight], float(np.abs(inputs).max()), "int8_static")
    assert even.after <= even.before < 0.02
    assert even.share == 1.0  # other text may have larger values, and cutting off gains next to nothing here
    inputs[7, 5] = 30.0
    found = static_scale(inputs, [weight[:16], weight[16:]], 30.0, "int8_static")
    assert found.share < 0.9
    assert found.scale == pytest.approx(30.0 * found.share / 127)
    assert found.after < found.before
    codes = np.clip(np.rint(inputs / np.float32(found.scale)), -128, 127) * np.float32(found.scale)
    wrong, right = (x.astype(np.float64) @ weight.T for x in (codes - inputs, inputs))
    lost, power = (np.square(y).sum(axis=1) for y in (wrong, right))
    assert found.after == pytest.approx(np.mean(lost / (power + power.mean() / 10)) ** 0.5, rel=1e-3)
    assert static_scale(np.zeros((2, K), np.float32), [weight], 0.0, "fp8_static").after == 0


def test_e4m3_numbers_have_as_much_room_as_costs_little() -> None:
    rng = np.random.default_rng(6)
    weight = rng.normal(size=(48, K)).astype(np.float32)
    inputs = rng.normal(size=(256, K)).astype(np.float32)
    assert static_scale(inputs, [weight], float(np.abs(inputs).max()), "fp8_static").share == 64.0
    found = static_scale(inputs, [weight], 1000.0, "fp8_static")  # next to which these lose their digits
    assert 4.0 <= found.share < 64.0
    assert found.after <= 1.1 * static_scale(inputs, [weight], 250.0, "fp8_static").after < 0.5 * found.before


def test_channels_stay_where_another_rounding_errs_less() -> None:
    rng = np.random.default_rng(7)
    sizes = np.geomspace(1, 100, K)
    inputs, weight = (rng.normal(size=(n, K)).astype(np.float32) for n in (128, 48))
    pair = FoldProducts((weight,), (inputs * sizes).astype(np.float32), rows_of_weights(8), tensor_int8)
    alone = rptq(pair)
    assert alone.setting is not None
    exact = unless(rptq, lambda pair: replace(pair, activation=as_they_are))(pair)
    assert (exact.setting, exact.how, exact.after) == (None, "ones", exact.before)
    assert (exact.scales == 1).all()
    worse = unless(rptq, lambda pair: pair)(pair)
    np.testing.assert_array_equal(worse.scales, alone.scales)
    assert unless(rptq, lambda pair: replace(pair, activation=as_they_are), most=1e9)(pair).setting is not None


def test_awq_helps_channels_with_large_inputs() -> None:
    rng = np.random.default_rng(0)
    inputs = (rng.normal(size=(64, K)) * np.exp(rng.normal(0, 1.5, K))).astype(np.float32)
    pair = FoldProducts((rng.normal(size=(64, K)).astype(np.float32),), inputs, W4)
    found = awq(pair, 64)
    assert found.after < 0.8 * found.before
    assert np.corrcoef(np.log(found.scales), np.log(pair.mean))[0, 1] > 0.5
    assert awq(pair, 64, ratios=[0.0]).after <= found.before


def test_ratio_0_of_the_plain_form_is_no_change() -> None:
    """Where inputs and weights are alike in all channels both forms are ones, which change nothing."""
    pair = FoldProducts((np.ones((4, K), np.float32),), np.ones((2, K), np.float32), W4)
    found = awq(pair, 64, ratios=[0.0])
    np.testing.assert_array_equal(found.scales, np.ones(K))
    assert found.setting is None


def test_a_threshold_moves_outliers_only() -> None:
    found = qqq(pair_of(2, {4: 50.0}, rows_of_weights(8)))
    assert found.setting is not None
    assert found.scales[4] > 10
    assert np.count_nonzero(found.scales > 1) < K / 4


def test_columns_of_one_channel_share_its_scale() -> None:
    """As those of query heads that read the same values."""
    base = pair_of(3, {4: 60.0, 68: 60.0}, rows_of_weights(8))
    pair = FoldProducts(base.weights, base.inputs, base.weight, base.activation, np.arange(K) % 64)
    found = smoothquant(pair)
    assert found.scales.shape == (64,)
    assert found.scales.argmax() == 4
    assert found.after < 0.1 * found.before
    x = np.abs(base.inputs).max(axis=0)
    np.testing.assert_allclose(pair.largest, np.maximum(x[:64], x[64:]))


def test_statistics_of_more_inputs_are_used() -> None:
    base = pair_of(0)
    absmax = np.abs(base.inputs).max(axis=0)
    absmax[9] = 1000.0
    found = qqq(FoldProducts(base.weights, base.inputs, base.weight, base.activation, absmax=absmax), steps=4)
    assert found.setting is None or found.scales.argmax() == 9


def test_clipping_never_errs_more_and_cuts_what_is_large() -> None:
    rng = np.random.default_rng(5)
    weight = rng.standard_t(3, size=(32, K)).astype(np.float32)
    inputs = rng.normal(size=(256, K)).astype(np.float32)
    w3 = groups_of_weights(3, 64)
    found = clip(weight, inputs, w3, 64)
    assert found.after < 0.95 * found.before
    assert found.limits.shape == (32, 2)
    np.testing.assert_array_equal(np.abs(found.weight).reshape(32, 2, 64).max(axis=-1), found.limits)
    want = group_errors(weight, w3(found.weight), inputs)
    np.testing.assert_allclose(want.sum(), found.after, rtol=1e-6)
    assert (want <= group_errors(weight, w3(weight), inputs) * (1 + 1e-9)).all()


def group_errors(weight: F32, got: F32, inputs: F32) -> np.ndarray:
    """Of each row and group, the sum over tokens of the square of what its part of the product errs: [N, 2]."""
    wrong = (got.astype(np.float64) - weight).reshape(len(weight), 2, 64)
    parts = np.einsum("tgi,ngi->tng", inputs.reshape(-1, 2, 64).astype(np.float64), wrong)
    out: np.ndarray = np.square(parts).sum(axis=0)
    return out


def test_what_does_not_fit_is_refused() -> None:
    x, w = np.ones((2, 8), np.float32), np.ones((4, 8), np.float32)
    with pytest.raises(UsageError, match=r"weights and statistics of \[4, 6\] \(allowed: \[N, 8\]"):
        FoldProducts((w[:, :6],), x, W4)
    with pytest.raises(UsageError, match=r"of \[4, 8\], \[3\]"):
        FoldProducts((w,), x, W4, absmax=np.ones(3))
    with pytest.raises(NonFiniteError, match="inputs of a product hold NaN"):
        FoldProducts((w,), x * np.float32(np.nan), W4)
    for call in (lambda: W4(w), lambda: clip(w, x, W4, 3)):
        with pytest.raises(UsageError, match=r"group is \d+ for rows of 8 values"):
            call()


def test_weights_are_rounded_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    weights = tuple(rng.normal(size=(n, K)).astype(np.float32) for n in (300, 16))
    inputs = rng.normal(size=(200, K)).astype(np.float32)
    pairs = [FoldProducts(weights, inputs, W4, rounding) for rounding in (tokens_int8, as_they_are)]
    tried = np.exp(rng.normal(size=K))

    def found() -> list[float]:
        limits = clip(weights[0], inputs, W4, 64)
        return [*(pair.error(tried) for pair in pairs), *awq(pairs[0]).scales, limits.after, *limits.limits.reshape(-1)]

    whole = found()
    monkeypatch.setattr(scheme_weight, "SLAB", 1)
    assert found() == pytest.approx(whole, rel=1e-5)
    assert replace(pairs[0], by_rows=False).error(tried) == whole[0]


def test_power_of_products_by_matrices_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    inputs, weight = (rng.normal(size=(n, K)).astype(np.float32) for n in (50, 40))
    few = static_scale(inputs, [weight, weight], 5.0, "int8_static")
    monkeypatch.setattr(static_activations, "LARGEST_GRAM", 64)
    many = static_scale(inputs, [weight, weight], 5.0, "int8_static")
    assert (many.scale, many.share) == (few.scale, few.share)
    assert (many.before, many.after) == pytest.approx((few.before, few.after), rel=1e-4)
