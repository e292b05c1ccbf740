"""The encoders: error bounds, odd shapes, extreme values, importance, and that neither threads nor order matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import FORMATS, QTensor, by_name, dequantize, quantize_reference
from octavo.formats.spec import F32, U8
from octavo.quantizers import ENCODABLE, encode
from tests.sampling import slow, some

BLOCKS = [name for name in ENCODABLE if name not in ("F32", "F16", "BF16")]
SEARCHED = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
GRIDS = [f.name for f in FORMATS if f.codebook]
WEIGHTED = [*SEARCHED, *GRIDS, "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


def quick(names):
    """Names of formats, of which those with encoders of a kind of their own run by default."""
    return [name if name in ("Q4_K", "Q6_K", "IQ4_NL", "Q4_0", "Q5_1", "IQ2_XXS") else slow(name) for name in names]


WEIGHED = [name if name in ("Q4_K", "Q4_0") else slow(name) for name in WEIGHTED]
"""Those that weigh with importance: one with minima and one without run by default."""


ALSO_WEIGHED = ("Q4_K", "Q4_0", "IQ2_XXS")
"""Those whose kernels with importance are compiled by default; the others' are made of the same functions."""


def importance_or_not(names):
    """Names, each with and without importance."""
    values = [(value, weighed) for value in quick(names) for weighed in (False, True)]
    return [
        (name, weighed) if isinstance(name, str) and (not weighed or name in ALSO_WEIGHED)
        else slow((name if isinstance(name, str) else name.values[0], weighed))
        for name, weighed in values
    ]


# sqrt(sum of squared errors) / n over 4096 values of 0.1 + 2 cos(i), as llama.cpp's own test holds the formats to
TOLERANCE = {"Q2_K": 0.0075, "Q3_K": 0.004, "IQ3_XXS": 0.005, "IQ3_S": 0.004, "IQ2_XXS": 0.0075, "IQ2_XS": 0.0075,
             "IQ2_S": 0.0075, **dict.fromkeys(("IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"), 0.01)}
FEW_LEVELS = [name for name in ENCODABLE if by_name(name).codebook or by_name(name).offset == 1]
"""Formats whose values are codebook entries, or three levels."""


def decoded(name: str, packed: U8, k: int) -> F32:
    return dequantize(QTensor(by_name(name), (len(packed), k), packed))


def round_trip(name: str, x: F32, importance: F32 | None = None) -> F32:
    return decoded(name, encode(x, name, importance=importance), x.shape[1])


def squared_error(name: str, x: F32, weights: F32 | float = 1.0, importance: F32 | None = None) -> float:
    error = round_trip(name, x, importance).astype(np.float64) - x
    return float((weights * np.square(error)).sum())


def samples(kind: str, rows: int = 16, k: int = 1024, seed: int = 0) -> F32:
    rng = np.random.default_rng(seed)
    draw = {
        "gauss": lambda: rng.standard_normal((rows, k)),
        "laplace": lambda: rng.laplace(size=(rows, k)),
        "heavy": lambda: rng.standard_t(3, (rows, k)),
        "positive": lambda: rng.uniform(1, 2, (rows, k)),
        "sparse": lambda: rng.standard_normal((rows, k)) * (rng.random((rows, k)) < 0.05),
        "scaled": lambda: rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(-4, 2, (rows, 1)),
    }
    return draw[kind]().astype(np.float32)


KINDS = ("gauss", "laplace", "heavy", "positive", "sparse", "scaled")


@pytest.mark.few(3)
@pytest.mark.parametrize("weighted", some([False, True], 1))
@pytest.mark.parametrize("name", quick(BLOCKS))
def test_round_trip_error(name, weighted):
    x = (0.1 + 2 * np.cos(np.arange(4096))).astype(np.float32).reshape(4, 1024)
    importance = np.ones(1024, np.float32) if weighted else None
    error = np.sqrt(squared_error(name, x, importance=importance)) / x.size
    assert error < TOLERANCE.get(name, 0.002)


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", some(KINDS, 3))
@pytest.mark.parametrize("name", quick([*SEARCHED, *GRIDS, "TQ1_0", "TQ2_0"]))
def test_never_worse_than_the_reference_encoder(name, kind):
    x = samples(kind)
    fmt = by_name(name)
    spread = np.square(x.reshape(-1, fmt.super)).mean(axis=-1, keepdims=True, dtype=np.float64) / 4
    weights = np.sqrt(np.square(x.reshape(-1, fmt.super)) + spread).reshape(x.shape)
    reference = np.square(dequantize(quantize_reference(x, fmt)).astype(np.float64) - x)
    found = np.square(round_trip(name, x).astype(np.float64) - x)
    for w in (weights,) if name in FEW_LEVELS else (1.0, weights) if name != "MXFP4" else (1.0,):
        errors, others = (w * found).sum(axis=1), (w * reference).sum(axis=1)
        close = (name, kind) == ("IQ1_S", "positive")  # three levels, of which values of one sign have two
        assert (errors <= others * (1.01 if close else 1.0)).all()
        assert errors.sum() <= others.sum()


@pytest.mark.parametrize("kind", some(["gauss", "heavy"], 1))
@pytest.mark.parametrize("name", WEIGHED)
def test_importance_lowers_the_error_that_it_weighs(name, kind):
    x = samples(kind)
    importance = np.random.default_rng(1).chisquare(1, x.shape[1]).astype(np.float32)
    assert squared_error(name, x, importance, importance) < squared_error(name, x, importance)


@pytest.mark.parametrize("name", WEIGHED)
def test_an_important_input_is_kept(name):
    x = samples("gauss")
    importance = np.full(x.shape[1], 1e-3, np.float32)
    importance[::64] = 1.0
    error = lambda found: np.square(found - x)[:, ::64].sum()  # noqa: E731
    most = 1.0 if name == "MXFP4" else 0.6  # where only a power of two can be chosen
    assert error(round_trip(name, x, importance)) < most * error(round_trip(name, x))


@pytest.mark.parametrize("name", WEIGHED)
def test_only_proportions_of_importance_count(name):
    x = samples("laplace", 3)
    importance = np.random.default_rng(2).chisquare(2, x.shape[1]).astype(np.float32)
    assert np.array_equal(encode(x, name, importance=importance), encode(x, name, importance=importance * 2.0**40))
    zeros, ones = np.zeros_like(importance), np.ones_like(importance)
    assert np.array_equal(encode(x, name, importance=zeros), encode(x, name, importance=ones))
    importance[: x.shape[1] // 2] = 0  # half of the inputs never active: their weights still mean something
    most = 0.3 if name in FEW_LEVELS else 0.2
    assert squared_error(name, x, importance=importance) < most * np.square(x).sum()


@pytest.mark.parametrize("name", WEIGHED)
def test_an_outlier_without_importance_costs_the_others_nothing(name):
    """Whether most of its group counts or little of it does."""
    plain, importance = samples("gauss", 4), np.random.default_rng(2).chisquare(2, 1024).astype(np.float32)
    importance[[37, 600]] = importance[704:734] = 0
    spoilt = plain.copy()
    spoilt[:, [37, 710]], spoilt[::2, 600] = 1e4, -1e4
    error = lambda x: (importance * np.square(round_trip(name, x, importance) - plain)).sum()  # noqa: E731
    assert error(spoilt) < 1.05 * error(plain)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0"])
def test_what_has_nothing_to_weigh_ignores_importance(name):
    x = samples("gauss", 2, 64)
    assert np.array_equal(encode(x, name, importance=np.arange(64.0)), encode(x, name))


@pytest.mark.parametrize(("name", "weighted"), importance_or_not(ENCODABLE))
def test_rows_are_encoded_alone(name, weighted):
    """The same bytes whatever the threads, however many rows go together, and whichever rows those are."""
    block = by_name(name).block
    x = samples("heavy", 13, 3 * 256)
    importance = np.random.default_rng(3).chisquare(2, x.shape[1]).astype(np.float32) if weighted else None
    together = encode(x, name, importance=importance, threads=1)
    assert np.array_equal(encode(x, name, importance=importance, threads=3), together)
    for i in (0, 7, 12):
        assert np.array_equal(encode(x[i : i + 1], name, importance=importance)[0], together[i])
    width = by_name(name).row_bytes(block)
    assert np.array_equal(encode(x[:, -block:], name), encode(x, name)[:, -width:])


@pytest.mark.parametrize("k", [1, 5, 31])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_numbers_in_rows_of_any_length(name, k):
    x = samples("gauss", 3, k)
    assert np.array_equal(encode(x, name), quantize_reference(x, by_name(name)).data)


@pytest.mark.parametrize(("name", "weighted"), importance_or_not(BLOCKS))
def test_extreme_rows(name, weighted):
    """All decode to finite numbers, and to what they should where that can be said."""
    importance = np.random.default_rng(4).chisquare(2, 512).astype(np.float32) if weighted else None
    outlier = samples("gauss", 1, 512)[0]
    outlier[37] = 3000
    x = np.stack([np.zeros(512), np.full(512, -0.0), np.full(512, 2.5), np.full(512, -2.5), np.full(512, 1e-41),
                  np.full(512, 1e-7), outlier, np.where(np.arange(512) % 2, 4e4, -4e4)]).astype(np.float32)
    found = round_trip(name, x, importance)
    assert np.isfinite(found).all()
    assert (found[:2] == 0).all()
    assert (np.abs(found[4]) <= 1e-37).all()
    assert (np.abs(found[5]) <= 1e-6).all()
    if name in FEW_LEVELS:  # a point may leave one of its values far off
        assert np.abs(found[[2, 3, 6, 7]]).max() < 1e5
        return
    assert np.allclose(found[2:4], x[2:4], rtol=0.2 if name == "MXFP4" else 2e-2)
    assert found[6, 37] == pytest.approx(3000, rel=0.2 if name == "MXFP4" else 0.1)
    assert np.allclose(found[7], x[7], rtol=0.25 if name in ("Q2_K", "Q3_K", "MXFP4") else 0.15)


@pytest.mark.parametrize("name", quick(["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]))
def test_tiny_weights_are_not_lost(name):
    """Where the scale of a super-block would be rounded to nothing, the smallest f16 is better than 0."""
    x = samples("gauss", 4, 512) * np.float32(3e-6)
    assert squared_error(name, x) < 0.75 * np.square(x, dtype=np.float64).sum()


@pytest.mark.parametrize("name", quick(BLOCKS))
def test_encoding_again_hardly_changes_anything(name):
    x = samples("laplace")
    once = round_trip(name, x)
    again = round_trip(name, once)
    moved = np.square(again - once, dtype=np.float64).sum()
    allowed = 0.0 if name in ("MXFP4", "Q8_0") else 0.25  # powers of two and plain rounding find their own grid again
    assert moved <= allowed * np.square(once - x, dtype=np.float64).sum() + 1e-9 * np.square(x).sum()


@pytest.mark.parametrize("name", quick(SEARCHED))
def test_no_value_is_further_off_than_the_span_of_its_group_allows(name):
    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, 10_000), st.floats(-2, 3), st.floats(0, 0.9))  # below, scales are a few units of F16
    def check(seed: int, exponent: float, zeros: float) -> None:
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1, 1, (2, 512)) * (rng.random((2, 512)) >= zeros)
        x = (x * 10.0**exponent).astype(np.float32)
        found = round_trip(name, x)
        step = 2.0 / ((1 << by_name(name).bits) - 1)
        assert np.abs(found - x).max() <= 1.5 * step * np.abs(x).max()

    check()


def test_what_is_refused():
    x = np.zeros((3, 512), np.float32)
    with pytest.raises(QuantFormatError, match="no encoder for Q8_1"):
        encode(x, "Q8_1")
    with pytest.raises(QuantFormatError, match=r"shape \(3, 100\).*Q4_K blocks"):
        encode(x[:, :100], "Q4_K")
    with pytest.raises(QuantFormatError, match=r"shape \(512,\)"):
        encode(x[0], "Q4_K")
    with pytest.raises(UsageError, match=r"importance of shape \(511,\) for rows of 512"):
        encode(x, "Q4_K", importance=np.ones(511))
    with pytest.raises(UsageError, match="importance is -1 at column 7"):
        encode(x, "Q4_K", importance=np.where(np.arange(512) == 7, -1, 1))
    with pytest.raises(NonFiniteError, match="importance: nan at column 9"):
        encode(x, "Q4_K", importance=np.where(np.arange(512) == 9, np.nan, 1))
    with pytest.raises(UsageError, match="threads is 0"):
        encode(x, "Q4_K", threads=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ENCODABLE)
def test_non_finite_values_are_refused_by_row_and_column(name, bad):
    x = np.zeros((70, 512), np.float32)
    x[69, 511] = x[68, 300] = bad
    with pytest.raises(NonFiniteError, match="at row 68, column 300"):
        encode(x, name)


@pytest.mark.parametrize("largest", [3.4e38, -3.4e38, 1e20])
@pytest.mark.parametrize(("name", "weighted"), importance_or_not(ENCODABLE))
def test_values_beyond_a_format_are_refused(name, weighted, largest):
    importance = np.linspace(1, 2, 512) if weighted else None
    x = samples("gauss", 2, 512)
    x[1, 300] = largest
    if name in ("F32", "MXFP4") or (name == "BF16" and largest == 1e20):
        assert np.isfinite(round_trip(name, x, importance)).all()
    else:
        with pytest.raises(QuantFormatError, match=name):
            encode(x, name, importance=importance)


@pytest.mark.parametrize("name", ENCODABLE)
def test_no_rows(name):
    assert encode(np.zeros((0, 512), np.float32), name).shape == (0, by_name(name).row_bytes(512))
