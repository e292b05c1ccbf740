"""Attention of the reference backend against an independent float64 definition, from pages in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ops
from tests.backends import op_oracle
from tests.backends.reference.test_ops import NMSE, TOKENS, error


class Paged:
    """Sequences in a paged cache, their pages shuffled, everything else in it NaN."""

    def __init__(
        self, contexts: list[int], lengths: list[int], heads: int = 4, kv_heads: int = 2, dim: int = 8, page: int = 4,
        dtype: type = np.float32,
    ) -> None:
        rng = np.random.default_rng(sum(contexts) + 7)
        totals = [c + n for c, n in zip(contexts, lengths, strict=True)]
        self.page, self.lengths, self.scale = page, lengths, dim**-0.5
        counts = [-(-t // page) for t in totals]
        numbers = iter(rng.permutation(sum(counts) + 3).tolist())
        self.pages = np.full((len(contexts), max(counts) + 1), 0, np.int32)
        shape = ((sum(counts) + 3) * page, kv_heads, dim)
        self.k, self.v = np.full(shape, np.nan, dtype), np.full(shape, np.nan, dtype)
        self.keys, self.values = [], []
        for s, total in enumerate(totals):
            own = [next(numbers) for _ in range(counts[s])]
            self.pages[s, : len(own)] = own
            keys, values = (rng.standard_normal((total, kv_heads, dim)).astype(dtype) for _ in "kv")
            for p in range(total):
                row = own[p // page] * page + p % page
                self.k[row], self.v[row] = keys[p], values[p]
            self.keys.append(keys)
            self.values.append(values)
        self.q = rng.standard_normal((sum(lengths), heads, dim)).astype(np.float32)
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.positions = np.concatenate(
            [np.arange(c, t, dtype=np.int32) for c, t in zip(contexts, totals, strict=True)]
        )

    def run(self, *sinks: np.ndarray, **changes: Any) -> np.ndarray:
        where = [changes.pop(n, getattr(self, n)) for n in ("positions", "starts", "pages")]
        return ops.attention(self.q, self.k, self.v, *where, *sinks, **changes, scale=self.scale, page_size=self.page)

    def want(self, window: int = 0, reach: int = 0) -> np.ndarray:
        return op_oracle.attention(self.q, self.keys, self.values, self.lengths, self.scale, window, reach)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("context", [0, 1, 13])
def test_attention(tokens: int, heads: int, kv_heads: int, context: int) -> None:
    case = Paged([context], [tokens], heads, kv_heads)
    assert error(case.run(), case.want()) < NMSE


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_attention_of_several_sequences(dtype: type) -> None:
    case = Paged([5, 0, 9, 30, 2], [3, 7, 0, 1, 1], dtype=dtype)
    got = case.run()
    assert error(got, case.want()) < NMSE
    pages = case.pages.copy()
    pages[[0, 1]] = pages[[1, 0]]
    with np.errstate(invalid="ignore"):
        wrong = case.run(pages=pages)
    assert not error(wrong, case.want()) < 1e-2, "the pages of another sequence give something else"


@pytest.mark.parametrize("window", [1, 2, 7, 39, 40])
def test_attention_with_a_window(window: int) -> None:
    case = Paged([5, 0, 9, 30, 2], [3, 7, 0, 1, 1])
    assert error(case.run(window=window), case.want(window)) < NMSE
    assert window > 30 or error(case.run(), case.want(window)) > 1e-2


@pytest.mark.parametrize(("window", "reach"), [(0, 1 << 30), (0, 2), (3, 2), (8, 7), (2, 50)])
def test_attention_that_looks_ahead(window: int, reach: int) -> None:
    case = Paged([0, 0, 0], [9, 1, 21])
    assert error(case.run(window=window, reach=reach), case.want(window, min(reach, 99))) < NMSE
    assert error(case.run(window=window), case.want(window, min(reach, 99))) > 1e-2


def test_attention_in_chunks_and_with_sinks() -> None:
    case, sinks = Paged([0], [9], heads=2, kv_heads=2), np.array([0.5, -1.0], np.float32)
    for chunk, sink in ((0, None), (4, None), (4, sinks)):
        want = op_oracle.attention_in_chunks(case.q, case.keys[0], case.values[0], case.scale, chunk or 9, sink)
        given = () if sink is None else (sink,)
        assert error(case.run(*given, window=-chunk), want) < NMSE
    assert error(case.run(window=4), want) > 1e-3


def test_attention_with_a_cap() -> None:
    case = Paged([0], [9], heads=2, kv_heads=2)
    want = op_oracle.capped_attention(case.q, case.keys[0], case.values[0], case.scale, 0.5)
    assert error(case.run(cap=0.5), want) < NMSE
    assert error(case.run(), want) > 1e-3


@pytest.mark.parametrize(("heads", "slopes"), [
    (2, [1 / 16, 1 / 256]), (4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]),
    (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
])
def test_attention_that_falls_with_the_distance(heads: int, slopes: list[float]) -> None:
    case = Paged([0], [9], heads=heads, kv_heads=heads)
    want = op_oracle.sloped_attention(case.q, case.keys[0], case.values[0], case.scale, slopes)
    assert error(case.run(reach=99, alibi=8.0), want) < NMSE
    assert error(case.run(reach=99), want) > 1e-3
    causal = op_oracle.sloped_attention(case.q, case.keys[0], case.values[0], case.scale, slopes, causal=True)
    assert error(case.run(alibi=8.0), causal) < NMSE


def test_attention_whose_values_begin_keys() -> None:
    case = Paged([5, 0], [3, 7], heads=4, kv_heads=1)
    size = case.q.shape[2] // 2
    case.values[:], case.v = case.keys, case.k
    want = case.want().reshape(*case.q.shape)[..., :size].reshape(len(case.q), -1)
    assert error(case.run(value_dim=size), want) < NMSE
