"""Hessians and their factors against float64 NumPy, in one thread and in several, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from octavo.calibrate.hessian import TOKENS, CrossHessian, Hessian, absmax, agreement, factorize, solve, weighed
from octavo.errors import NonFiniteError, UsageError
from octavo.formats.spec import F32
from octavo.quantizers import matrix_tiles
from octavo.quantizers.matrix_tiles import spans
from octavo.quantizers.statistics import ChannelStatistics


def vectors(tokens: int, size: int, seed: int = 0) -> np.ndarray:
    """Correlated vectors, float32 [T, K]."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((size, size)) / np.sqrt(size)
    return (rng.standard_normal((tokens, size)) @ mix).astype(np.float32)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with matrix_tiles.ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(matrix_tiles, "_threads", lambda: pool)
        yield


@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (7, 3), (2500, 300), (31, 513)])
def test_the_mean_of_products(tokens: int, size: int) -> None:
    x = vectors(tokens, size)
    hessian = Hessian(size, "w")
    for part in np.array_split(x, min(3, tokens)):
        hessian.add(part)
    want = x.astype(np.float64).T @ x / tokens
    got = hessian.matrix()
    assert hessian.tokens == tokens
    assert np.array_equal(got, got.T)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * want.diagonal().max())
    np.testing.assert_array_equal(hessian.diagonal(), got.diagonal())


@pytest.mark.parametrize("size", [1, 64, 300])
def test_the_factor_is_of_the_damped_hessian(size: int) -> None:
    hessian = Hessian(size)
    hessian.add(vectors(2 * size, size))
    factor = factorize(hessian.matrix(), "act", 0.01)
    order = np.argsort(-hessian.diagonal(), kind="stable")
    assert (factor.order == order).all()
    damped = hessian.matrix() + 0.01 * hessian.diagonal().mean() * np.eye(size)
    np.testing.assert_allclose(factor.hessian, damped, rtol=1e-6, atol=1e-6)
    assert factor.damping == 0.01
    assert not np.triu(factor.m, 1).any()
    assert (factor.m.diagonal() == 1).all()
    got = factor.m.T.astype(np.float64) @ (factor.weights[:, None] * factor.m)
    np.testing.assert_allclose(got, damped[np.ix_(order, order)], atol=1e-6 * damped.max())


@pytest.mark.parametrize("size", [1, 256, 511, 700])
def test_a_factor_in_the_memory_of_a_hessian_that_nobody_needs(size: int) -> None:
    hessian = Hessian(size, double=False)
    hessian.add(vectors(2 * size, size))
    want, matrix = factorize(hessian.matrix(), "act", 0.01), hessian.matrix()
    found = factorize(matrix, "act", 0.01, keep=False)
    assert found.hessian is matrix
    assert found.m.dtype == np.float32
    for name in ("order", "m", "weights", "hessian"):
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name))
    damped = want.hessian[np.ix_(want.order, want.order)].astype(np.float64)
    got = found.m.T.astype(np.float64) @ (found.weights[:, None] * found.m)
    np.testing.assert_allclose(got, damped, atol=2e-6 * damped.max())


def test_dead_channels_take_no_part() -> None:
    x = vectors(100, 20)
    x[:, 5] = 0
    hessian = Hessian(20)
    hessian.add(x)
    m = factorize(hessian.matrix(), "natural", 0.01).m
    assert m[5, 5] == 1
    assert not np.delete(m[5], 5).any()
    assert not np.delete(m[:, 5], 5).any()


def test_damping_rises_until_there_is_a_factor() -> None:
    hessian = Hessian(8)
    hessian.add(np.ones((4, 8), np.float32))  # of rank 1
    assert factorize(hessian.matrix(), "act", 0.0).damping > 0
    with pytest.raises(UsageError, match="not positive semidefinite"):
        factorize(np.diag([1.0, -100.0]), "act", 0.01)


def test_pairs_of_vectors() -> None:
    y, x = vectors(90, 30), vectors(90, 30, seed=1)
    pairs = CrossHessian(30, "w")
    pairs.add(y[:50], x[:50])
    pairs.add(y[50:], x[50:])
    np.testing.assert_allclose(pairs.cross(), y.T.astype(np.float64) @ x / 90, atol=1e-6)
    np.testing.assert_allclose(pairs.hessian.matrix(), y.T.astype(np.float64) @ y / 90, atol=1e-6)
    assert pairs.tokens == 90


def digest() -> bytes:
    hessian = Hessian(520)
    hessian.add(vectors(700, 520))
    return hessian.matrix().tobytes() + factorize(hessian.matrix(), "act", 0.01).m.tobytes()


def test_threads_do_not_matter(request: pytest.FixtureRequest) -> None:
    many = digest()
    request.getfixturevalue("one_thread")
    assert digest() == many


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_name_the_tensor(value: float) -> None:
    x = vectors(4, 6)
    x[2, 3] = value
    with pytest.raises(NonFiniteError, match=r"blk\.3\.ffn_down\.weight"):
        Hessian(6, "blk.3.ffn_down.weight").add(x)
    with pytest.raises(NonFiniteError, match=r"blk\.3\.ffn_down\.weight"):
        CrossHessian(6, "blk.3.ffn_down.weight").add(vectors(4, 6), x)
    with pytest.raises(NonFiniteError, match=r"blk\.3\.ffn_down\.weight"):
        absmax([vectors(600, 6), x], 6, "blk.3.ffn_down.weight")


def test_squares_beyond_float32_name_the_tensor() -> None:
    """Their sum is infinite, though no vector is."""
    with pytest.raises(NonFiniteError, match=r"blk\.3\.ffn_down\.weight"):
        Hessian(6, "blk.3.ffn_down.weight").add(np.full((4, 6), 1e20, np.float32))


@pytest.mark.parametrize("size", [5, 300, 700])
def test_parts_of_the_tokens_that_threads_share_give_the_same_bytes(size: int) -> None:
    """As each by itself: few tiles are shared out with the tokens, many are not."""
    x, whole, parts = vectors(TOKENS * 5 + 77, size), Hessian(size), Hessian(size)
    whole.add(x)
    for part in spans(len(x), TOKENS):
        parts.add(x[part])
    np.testing.assert_array_equal(whole.matrix(), parts.matrix())


def test_the_largest_magnitudes_are_those_of_the_statistics() -> None:
    batches, found = [vectors(700, 40), -3 * vectors(5, 40)], ChannelStatistics(1, 40)
    for x in batches:
        found.add(x, 0)
    np.testing.assert_array_equal(absmax(batches, 40, "w"), found.absmax[0])
    assert not absmax([], 40, "w").any()


@pytest.mark.parametrize(("size", "columns"), [(1, 3), (256, 300), (600, 1), (700, 520)])
def test_equations_with_a_hessian(size: int, columns: int, request: pytest.FixtureRequest) -> None:
    hessian, right = Hessian(size), vectors(size, columns).astype(np.float64)
    hessian.add(vectors(2 * size + 5, size))
    a = hessian.matrix() + 0.01 * np.eye(size)
    found, again = right.copy(), right.copy()
    solve(a.copy(), found)
    np.testing.assert_allclose(a @ found, right, atol=1e-10 * np.abs(right).max())
    np.testing.assert_allclose(found, np.linalg.solve(a, right), rtol=1e-8, atol=1e-10)
    request.getfixturevalue("one_thread")
    solve(a.copy(), again)
    np.testing.assert_array_equal(found, again)
    with pytest.raises(np.linalg.LinAlgError):
        solve(-a, again)


def test_errors_weighed_by_a_hessian() -> None:
    hessian, rows = Hessian(300), vectors(600, 300)
    hessian.add(vectors(500, 300))
    h = hessian.matrix()
    want = np.einsum("nk,kj,nj->n", rows.astype(np.float64), h, rows, optimize=True)
    np.testing.assert_allclose(weighed(rows, h), want, rtol=1e-12)
    np.testing.assert_allclose(weighed(rows, h.astype(np.float32)), want, rtol=1e-5)
    assert weighed(rows[:0], h).sum() == 0


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\[4, 5\] for a Hessian of 6"):
        Hessian(6, "w").add(vectors(4, 5))
    with pytest.raises(UsageError, match="0 inputs"):
        Hessian(0)


def mixed(tokens: int, size: int = 96, seed: int = 0) -> tuple[F32, F32]:
    """Vectors [T, K] of channels that go together, and what they are a mixture of, [K, K]."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size)) / size**0.5 + np.diag(np.exp(rng.standard_normal(size)))
    return (rng.standard_normal((tokens, size)) @ root).astype(np.float32), root.astype(np.float32)


@pytest.mark.parametrize("tokens", [100, 400, 6400])
def test_agreement_of_halves_is_the_best_share_for_other_text(tokens: int) -> None:
    found = []
    for seed in range(8):
        x, _ = mixed(tokens, seed=0) if not seed else (mixed(8 * tokens)[0][seed * tokens : (seed + 1) * tokens], None)
        halves = [Hessian(x.shape[1]), Hessian(x.shape[1])]
        for half, part in zip(halves, (x[::2], x[1::2]), strict=True):
            half.add(part)
        found.append(agreement(*halves))
    _, root = mixed(1)
    true = root.T.astype(np.float64) @ root
    seen = x.T.astype(np.float64) @ x / tokens
    true, seen = (m / np.sqrt(np.outer(np.diag(m), np.diag(m))) for m in (true, seen))
    beside = ~np.eye(len(true), dtype=bool)
    best = (true[beside] @ seen[beside]) / (seen[beside] @ seen[beside])
    assert np.mean(found) == pytest.approx(best, abs=0.08)


def test_agreement_where_nothing_goes_together() -> None:
    rng = np.random.default_rng(0)
    halves = [Hessian(64), Hessian(64)]
    assert agreement(*halves) == 1
    for half in halves:
        half.add(rng.standard_normal((500, 64), dtype=np.float32))
    assert agreement(*halves) < 0.15
    whole = Hessian(64)
    whole.add(rng.standard_normal((500, 64), dtype=np.float32))
    mean = whole.matrix()
    whole.kept = 0.25
    less = whole.matrix()
    np.testing.assert_array_equal(np.diag(less), np.diag(mean))
    np.testing.assert_allclose(less - np.diag(np.diag(less)), 0.25 * (mean - np.diag(np.diag(mean))))


def test_vectors_a_thousand_times_as_long_count_as_much_as_all_others() -> None:
    x, few = vectors(500, 8), vectors(2, 8, seed=1) * 1000
    others, both, short = Hessian(8), Hessian(8), Hessian(8)
    others.add(x)
    for hessian, whole in ((both, few), (short, few / 1000)):
        hessian.add(x)
        hessian.add_whole(whole)
    own = others.matrix() * 500 / 502
    long = few.astype(np.float64).T @ few
    np.testing.assert_allclose(both.matrix(), own + long * own.trace() / long.trace(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(short.matrix(), own + long / (1e6 * 502), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(both.diagonal(), both.matrix().diagonal(), rtol=1e-6)


def test_pairs_of_long_vectors_count_as_the_vectors_do() -> None:
    x, few = vectors(500, 8), vectors(2, 8, seed=1) * 1000
    sums = CrossHessian(8)
    sums.add(x, x)
    sums.hessian.add_whole(few, 2 * few)
    single = Hessian(8)
    single.add(x)
    own = single.matrix() * 500 / 502
    np.testing.assert_allclose(sums.cross() - own, 2 * (sums.hessian.matrix() - own), rtol=1e-4, atol=1e-5)


def test_long_vectors_alone_count_whole() -> None:
    few, hessian = vectors(3, 8) * 1000, Hessian(8)
    hessian.add_whole(few)
    np.testing.assert_allclose(hessian.matrix(), few.astype(np.float64).T @ few / 3, rtol=1e-5)


@pytest.mark.parametrize(("x", "y", "error"), [
    (np.full((2, 8), 1e25, np.float32), None, NonFiniteError),
    (np.ones((2, 8), np.float32), np.full((2, 8), np.nan, np.float32), NonFiniteError),
    (np.ones((2, 8), np.float32), np.ones((3, 8), np.float32), UsageError),
    (np.ones((2, 8), np.float32), np.ones((2, 4), np.float32), UsageError),
])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_what_can_not_count_whole(x: F32, y: F32 | None, error: type[Exception]) -> None:
    hessian = Hessian(8)
    with pytest.raises(error):
        hessian.add_whole(x, y)
    assert not hessian.matrix().any()


def test_the_diagonal_is_the_matrix_of_large_vectors_too() -> None:
    hessian = Hessian(8)
    hessian.add(vectors(20, 8) * np.float32(1e15))
    hessian.add_whole(vectors(2, 8) * np.float32(1e18))
    np.testing.assert_allclose(hessian.diagonal(), np.diag(hessian.matrix()), rtol=1e-4)
