"""Error compensation against small versions of it: closed forms, all codes tried, the published algorithm."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from octavo.calibrate import gptq
from octavo.calibrate.hessian import factorize
from octavo.calibrate.methods.gptq.gptq_quantize import _corrected
from octavo.calibrate.methods.gptq.gptq_rows import SHRINKS, encoded, stored_values
from octavo.calibrate.methods.gptq.gptq_schemes import gptq_row
from octavo.calibrate.methods.gptq.sweep import sweep
from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import (
    BlockFormat,
    Planes,
    QTensor,
    by_name,
    channel_format,
    decode,
    dequantize,
    quantize_reference,
    unpack,
)
from octavo.formats.group import row_named
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES
from octavo.quantizers import encode
from tests.calibrate.naive import clip_search
from tests.sampling import slow

Array = np.ndarray[Any, Any]
K = 512
module = importlib.import_module("octavo.calibrate.methods.gptq.gptq_quantize")
WHOLE_ROWS = [channel_format("INT4", K), channel_format("INT8", K)]
OTHERS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_XS", "TQ1_0",
          "TQ2_0", "GROUP4_128_F16", "GROUP4_64_Z_F16", "GROUP3_32_M_BF16", "GROUP8_128_F32",
          "GROUP2_32_Z_BF16"]


def rows(n: int = 20, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((n, K)).astype(np.float32) / 16


def correlated(tokens: int = 2000, seed: int = 1) -> Array:
    """A Hessian of inputs of which a few directions are large."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((K, K)) * np.exp(-np.arange(K) / 40)[:, None]
    x = rng.standard_normal((tokens, K)) @ mixing + 0.1 * rng.standard_normal((tokens, K))
    return np.asarray(x.T @ x / tokens)


def planes_of(packed: Array, name: str = "Q4_K") -> Planes:
    fmt = row_named(name)
    return unpack(QTensor(fmt, (len(packed), packed.shape[1] // fmt.block_bytes * fmt.block), packed))


def values(packed: Array, name: str = "Q4_K") -> Array:
    return decode(planes_of(packed, name), row_named(name))


def error(weight: Array, packed: Array, hessian: Array, name: str = "Q4_K") -> Array:
    """e^T H e of each row, in float64."""
    e = weight.astype(np.float64) - values(packed, name)
    return np.asarray(np.einsum("nk,kj,nj->n", e, hessian, e))


def grid(packed: Array) -> tuple[Array, Array]:
    """Of a Q4_K matrix what a code of each value is worth, and what is taken away: float64 [N, K]."""
    p = planes_of(packed)
    assert p.d is not None
    assert p.sc is not None
    assert p.dmin is not None
    assert p.m is not None
    steps = np.repeat(p.d, 8, axis=1).astype(np.float64) * p.sc
    lows = np.repeat(p.dmin, 8, axis=1).astype(np.float64) * p.m
    return np.repeat(steps, 32, axis=1), np.repeat(lows, 32, axis=1)


def published(weight: Array, hessian: Array, packed: Array, damp: float) -> Array:
    """Codes by GPTQ as its authors' code has it (columns in descending diagonal, fixed scales), in float64."""
    steps, lows = grid(packed)
    order = np.argsort(-hessian.diagonal(), kind="stable")
    h = hessian[np.ix_(order, order)] + damp * hessian.diagonal().mean() * np.eye(K)
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    w, codes = weight[:, order].astype(np.float64), np.empty(weight.shape, np.int64)
    for j, k in enumerate(order):
        usable = np.where(steps[:, k] == 0, 1, steps[:, k])
        code = np.where(steps[:, k] == 0, 0, np.clip(np.rint((w[:, j] + lows[:, k]) / usable), 0, 15))
        left = (w[:, j] - (steps[:, k] * code - lows[:, k])) / upper[j, j]
        w[:, j:] -= left[:, None] * upper[j, j:]
        codes[:, k] = code
    return codes


@pytest.mark.parametrize("diagonal", [np.ones(K), np.linspace(0.1, 3, K)[np.random.default_rng(3).permutation(K)]])
def test_without_correlation_it_is_the_encoder(diagonal: Array) -> None:
    found = gptq(rows(), np.diag(diagonal), "Q4_K", rounds=0)
    assert (found.packed == encode(rows(), "Q4_K", importance=diagonal)).all()
    assert found.kept == 0


def test_codes_are_those_of_the_published_algorithm() -> None:
    h = correlated()
    found = gptq(rows(), h, "Q4_K", rounds=0)
    assert found.kept == len(rows())
    plain = encode(rows(), "Q4_K", importance=h.diagonal())
    same = planes_of(found.packed).q == published(rows(), h, plain, 0.01)
    assert same.mean() >= 0.999


@pytest.mark.parametrize("fmt", [row_named("GROUP4_128_F16"), *map(slow, WHOLE_ROWS)], ids=lambda fmt: fmt.name)
def test_codes_of_checkpoints_rows_are_those_of_the_published_algorithm(fmt: BlockFormat) -> None:
    """By the paper (Frantar et al., arXiv 2210.17323, algorithm 1) in float64, on the same Hessian and scales."""
    h, w = correlated(), rows(64)
    order, damped = np.argsort(-h.diagonal(), kind="stable"), h + 0.01 * h.diagonal().mean() * np.eye(K)
    inverse = np.linalg.inv(damped[np.ix_(order, order)])
    found = gptq(w, h, fmt, rounds=0)
    planes = unpack(QTensor(fmt, w.shape, found.packed))
    assert planes.d is not None
    steps = np.repeat(planes.d, fmt.group, axis=1).astype(np.float64)[:, order]
    left, codes = w.astype(np.float64)[:, order], np.empty(w.shape)
    for j in range(K):
        wanted = np.rint(left[:, j] / steps[:, j]) + fmt.offset
        codes[:, j] = np.clip(wanted, 0, 2 * fmt.offset - 1)
        err = (left[:, j] - (codes[:, j] - fmt.offset) * steps[:, j]) / inverse[j, j]
        left -= err[:, None] * inverse[j]
        inverse -= np.outer(inverse[:, j], inverse[j]) / inverse[j, j]  # column j eliminated
        inverse[j, j] = 1.0  # and read no more
    assert found.kept == len(w)
    same = 0.999 if fmt.bits == 4 else 0.99  # of levels so near to each other sums in float32 tip more to a neighbour
    assert (planes.q[:, order] == codes).mean() >= same
    off = (w[:, order] - (codes - fmt.offset) * steps) @ np.linalg.cholesky(h[np.ix_(order, order)] + 1e-9 * np.eye(K))
    assert found.after.sum() == pytest.approx(np.square(off).sum(), rel=0.02)


def test_errors_are_those_of_what_is_packed_and_fall() -> None:
    h = correlated()
    once, thrice = (gptq(rows(), h, "Q4_K", rounds=n) for n in (0, 3))
    for found in (once, thrice):
        assert found.after == pytest.approx(error(rows(), found.packed, h), rel=1e-3)
        assert (found.after <= found.before).all()
    assert (thrice.after <= once.after * 1.0001).all()
    assert thrice.after.sum() < 0.9 * once.after.sum() < 0.5 * once.before.sum()
    assert once.before == pytest.approx(error(rows(), encode(rows(), "Q4_K", importance=h.diagonal()), h), rel=1e-3)
    assert once.after.sum() <= once.bound


def test_two_columns_that_matter_have_a_closed_form() -> None:
    h = np.zeros((K, K))
    h[np.ix_([3, 9], [3, 9])] = [[2.0, 0.9], [0.9, 1.0]]
    w = rows(200)
    found = gptq(w, h, "Q4_K", importance=np.ones(K), rounds=0, damp=1e-7)
    plain = encode(w, "Q4_K", importance=np.ones(K))
    steps, lows = grid(plain)
    first = np.clip(np.rint((w[:, 3] + lows[:, 3]) / steps[:, 3]), 0, 15)
    e = w[:, 3] - (steps[:, 3] * first - lows[:, 3])
    second = np.clip(np.rint((w[:, 9] + 0.9 * e + lows[:, 9]) / steps[:, 9]), 0, 15)
    kept = (found.packed != plain).any(axis=1)
    q = planes_of(found.packed).q
    assert kept.sum() > 20
    assert (q[kept][:, [3, 9]] == np.stack([first, second], axis=1)[kept]).mean() >= 0.999


def test_no_codes_are_better_than_all_that_were_tried() -> None:
    """Four columns that matter, and all codes of them."""
    chosen = [0, 5, 40, 300]
    mixing = np.random.default_rng(5).standard_normal((4, 4))
    h = np.zeros((K, K))
    h[np.ix_(chosen, chosen)] = mixing @ mixing.T + 0.3
    w = rows(12)
    plain = encode(w, "Q4_K", importance=np.ones(K))
    steps, lows = (part[:, chosen] for part in grid(plain))
    codes = np.array(list(itertools.product(range(16), repeat=4)), np.float64)  # [16^4, 4]
    off = w[:, None, chosen] - (steps[:, None] * codes - lows[:, None])  # [12, 16^4, 4]
    best = np.einsum("nci,ij,ncj->nc", off, h[np.ix_(chosen, chosen)], off).min(axis=1)
    once = gptq(w, h, "Q4_K", importance=np.ones(K), rounds=0, damp=1e-7)
    assert (once.after >= best * 0.999 - 1e-9).all()
    assert best.sum() <= once.after.sum() < 0.7 * once.before.sum()


def test_blocks_change_nothing_but_the_order_of_sums() -> None:
    h, w = correlated(), rows()
    start = planes_of(encode(w, "Q4_K", importance=h.diagonal()))
    factor, fmt = factorize(h, "act", 0.01), by_name("Q4_K")
    large, small = (sweep(w, start, fmt, factor, 0, 2, columns=n) for n in (128, 4))
    assert (large.planes.q == small.planes.q).mean() > 0.995
    assert large.after.sum() == pytest.approx(small.after.sum(), rel=0.01)


def test_columns_in_other_places_of_their_groups() -> None:
    h, w = correlated(), rows()
    moved = (np.arange(K).reshape(-1, 32)[:, np.random.default_rng(6).permutation(32)]).reshape(-1)
    here = gptq(w, h, "Q4_K", rounds=0)
    there = gptq(w[:, moved], h[np.ix_(moved, moved)], "Q4_K", rounds=0)
    assert (planes_of(there.packed).q == planes_of(here.packed).q[:, moved]).mean() > 0.99


def test_columns_that_met_nothing_and_few_tokens() -> None:
    h = correlated(tokens=100)
    h[7] = h[:, 7] = h[300] = h[:, 300] = 0
    w = rows()
    w[:, 7] = 50
    found = gptq(w, h, "Q4_K")
    assert found.kept == len(w)
    assert found.after.sum() < 0.3 * found.before.sum()
    nothing = gptq(w, np.zeros((K, K)), "Q4_K")
    assert nothing.kept == 0
    assert not nothing.after.any()


def test_bytes_do_not_depend_on_threads() -> None:
    one, two = (gptq(rows(70), correlated(), "Q4_K", threads=n).packed for n in (1, 2))
    assert (one == two).all()


def test_weights_that_are_aimed_at_do_not_depend_on_threads_of_the_library() -> None:
    """BLAS adds up in another order for another number of threads."""
    w, h = rows(300), correlated().astype(np.float64)
    cross, found = h + np.random.default_rng(1).standard_normal(h.shape) / 100, []
    for threads in (1, 2, 3):
        with threadpool_limits(threads, user_api="blas"):
            found.append(_corrected(w, h, cross, 0.01))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    eye = 0.01 * np.eye(K)
    np.testing.assert_allclose(found[0], np.linalg.solve(h + eye, (cross + eye) @ w.T).T, rtol=1e-4, atol=1e-6)


def test_other_inputs_than_the_original_ones() -> None:
    """With inputs that are off, what the original gives is met better than by who takes them for the original's."""
    rng, w = np.random.default_rng(8), rows()
    x = rng.standard_normal((3000, K)) @ (rng.standard_normal((K, K)) * np.exp(-np.arange(K) / 40)[:, None])
    off = x + 0.3 * rng.standard_normal((3000, K)) @ (rng.standard_normal((K, K)) / 16)
    h, cross = off.T @ off / 3000, off.T @ x / 3000
    wanted = x @ w.T

    def lost(packed: Array) -> float:
        return float(np.square(off @ values(packed).T - wanted).sum())

    assert lost(gptq(w, h, "Q4_K", cross=cross).packed) < 0.9 * lost(gptq(w, h, "Q4_K").packed)
    same = gptq(w, h, "Q4_K", cross=h, rounds=0)
    assert same.after.sum() == pytest.approx(gptq(w, h, "Q4_K", rounds=0).after.sum(), rel=0.02)


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ3_S", "IQ1_S", "F16", "INT8_CHANNEL"])
def test_formats_without_a_level_for_each_value_are_refused(name: str) -> None:
    with pytest.raises(QuantFormatError, match=name):
        gptq(rows(), np.eye(K), name)


def test_what_does_not_fit_is_refused() -> None:
    h, w = np.eye(K), rows()
    with pytest.raises(UsageError, match=r"hessian of shape \(4, 4\)"):
        gptq(w, np.eye(4), "Q4_K")
    with pytest.raises(QuantFormatError, match=r"\(20, 100\)"):
        gptq(w[:, :100], np.eye(100), "Q4_K")
    with pytest.raises(NonFiniteError, match="weight: nan at row 1, column 2"):
        gptq(np.where(np.arange(K) == 2, np.where(np.arange(20)[:, None] == 1, np.nan, w), w), h, "Q4_K")
    with pytest.raises(NonFiniteError, match="hessian: inf at row 0, column 0"):
        gptq(w, np.where(h * (np.arange(K) == 0), np.inf, h), "Q4_K")
    with pytest.raises(UsageError, match="diagonal"):
        gptq(w, -h, "Q4_K")
    with pytest.raises(UsageError, match="order 'random'"):
        gptq(w, h, "Q4_K", order="random")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="positive semidefinite"):
        gptq(w, h + 5 * (np.ones((K, K)) - h), "Q4_K")


def test_digits_to_the_base_3() -> None:
    h, w = correlated(), rows(17)
    found = gptq(w, h, "TQ1_0")
    assert np.unique(found.planes.q).tolist() == [0, 1, 2]
    assert error(w, found.packed, h, "TQ1_0") == pytest.approx(found.after, rel=2e-3)
    assert found.after.sum() < 0.5 * found.before.sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_row_of_the_table(name: str) -> None:
    h, w = correlated(), rows(37)
    once, thrice = (gptq(w, h, name, rounds=n) for n in (0, 3))
    assert thrice.after == pytest.approx(error(w, thrice.packed, h, name), rel=2e-3)
    assert thrice.kept == len(w)
    assert thrice.after.sum() < once.after.sum() < 0.5 * once.before.sum()
    tensor = QTensor(row_named(name), w.shape, thrice.packed)
    assert np.isfinite(dequantize(tensor)).all()


def test_rows_are_made_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian, fmt = rows(50), correlated(), row_named("GROUP4_128_F16")
    whole = gptq(weight, hessian, fmt, threads=1)
    cross = gptq(weight, hessian, fmt, cross=hessian * 1.1, threads=1)
    monkeypatch.setattr(module, "TILES", 1)
    monkeypatch.setattr(module, "SLAB", 1)
    assert len(module.row_parts(50, K, 1)) == 4
    for want, given in ((whole, None), (cross, hessian * 1.1)):
        found = gptq(weight, hessian, fmt, cross=given, threads=1)
        for name in ("packed", "before", "after", "kept", "damping"):
            np.testing.assert_array_equal(getattr(found, name), getattr(want, name))
        assert found.bound == pytest.approx(want.bound, rel=1e-6)
    assert gptq(weight[:0], hessian, "Q4_K").packed.shape == (0, row_named("Q4_K").row_bytes(K))


@pytest.mark.parametrize("fmt", [
    *(gptq_row(CHECKPOINT_SCHEMES[name], 256) for name in CHECKPOINT_SCHEMES if name != "fp8-block"),
    *map(row_named, ("GROUP3_32_Z_F16", "GROUP2_64_M_F16", "GROUP4_128_BF16", "Q4_0", "Q4_K")),
], ids=lambda fmt: fmt.name)
def test_values_that_are_tried_are_those_that_are_stored(fmt: BlockFormat) -> None:
    rows = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    rows[1], rows[2] = 0, rows[2] * 1e-9
    np.testing.assert_array_equal(stored_values(rows, fmt), dequantize(quantize_reference(rows, fmt)))


def test_ranges_of_groups_are_the_best_of_those_that_are_tried() -> None:
    """Also of rows that are looked at in parts; against each range by itself."""
    fmt, rng = row_named("GROUP2_32_F16"), np.random.default_rng(0)
    rows, weights = rng.standard_normal((9, 64)).astype(np.float32), rng.random(64).astype(np.float32)
    best, want = clip_search(rows, weights, SHRINKS.tolist(), fmt)
    assert len(np.unique(best)) > 3
    for at_a_time in (1 << 17, 100):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("octavo.calibrate.methods.gptq.gptq_rows.AT_A_TIME", at_a_time)
            found = encoded(rows, fmt, weights, 1)
        np.testing.assert_array_equal(decode(found, fmt), want)
