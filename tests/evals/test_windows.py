"""Windows of a text, and the steps in which their logits come."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import UsageError
from octavo.evals.windows import LOGIT_BYTES, TextWindow, logits, outputs_for, steps, windows
from tests.evals.conftest import Open
from tests.runtime import tiny

TOKENS = list(range(1, 101))


def test_windows_follow_one_another_and_score_their_second_halves(open_tiny: Open) -> None:
    found = windows(open_tiny(), TOKENS, 32)
    assert [w.tokens for w in found] == [TOKENS[:32], TOKENS[32:64], TOKENS[64:96]]
    for window in found:
        assert np.flatnonzero(window.scored).tolist() == list(range(17, 32))


def test_an_odd_context(open_tiny: Open) -> None:
    (window, *_) = windows(open_tiny(), TOKENS, 33, chunks=1)
    assert window.first == 16
    assert np.flatnonzero(window.scored).tolist() == list(range(17, 33))


def test_bos_takes_the_place_of_each_windows_first_token(open_tiny: Open) -> None:
    keys = {"tokenizer.ggml.bos_token_id": tiny.START, "tokenizer.ggml.add_bos_token": True}
    for window, start in zip(windows(open_tiny(keys=keys), TOKENS, 32), (0, 32, 64), strict=True):
        assert window.tokens == [tiny.START, *TOKENS[start + 1 : start + 32]]
    assert TOKENS[0] == 1, "the text is left as it was"


def test_only_marked_tokens_are_scored(open_tiny: Open) -> None:
    marked = [t % 3 == 0 for t in TOKENS]
    for window in windows(open_tiny(), TOKENS, 32, scored=marked):
        want = [i for i in range(17, 32) if window.tokens[i] % 3 == 0]
        assert np.flatnonzero(window.scored).tolist() == want


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 3}, "context is 3 .allowed: 4 or more"),
        ({"context": 65}, "context is 65 .allowed: 4 to 64"),
        ({"context": 32, "chunks": 0}, "chunks is 0"),
        ({"context": 32, "scored": [True]}, "scored is for 1 tokens .allowed: 100"),
        ({"context": 32, "scored": [False] * 100}, "no token"),
        ({"context": 32, "tokens": TOKENS[:31]}, "the text has 31 tokens, less than one window of 32"),
        ({"context": 32, "tokens": []}, "the text has 0 tokens"),
    ],
)
def test_what_makes_no_windows(open_tiny: Open, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        windows(open_tiny(), **{"tokens": TOKENS, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("n_outputs", [1, 3, 16, 31, 64])
@pytest.mark.parametrize("n_batch", [1, 5, 32, 64, 512])
@pytest.mark.parametrize("size", [4, 5, 31, 64])
def test_steps_cover_a_window_once_within_their_limits(size: int, n_batch: int, n_outputs: int) -> None:
    window = TextWindow(list(range(size)), np.ones(size, bool))
    found = list(steps(window, n_batch, n_outputs))
    assert [start for start, _, _ in found] == [0, *(stop for _, stop, _ in found[:-1])]
    assert found[-1][1] == size
    wanted = [token for _, stop, outputs in found for token in range(stop - outputs, stop)]
    assert wanted == list(range(window.first, size))
    assert all(stop - start <= n_batch and outputs <= n_outputs for start, stop, outputs in found)


@pytest.mark.parametrize(("n_batch", "n_outputs"), [(64, 64), (7, 64), (64, 5), (16, 1)])
def test_logits_are_those_of_the_tokens_before(open_tiny: Open, n_batch: int, n_outputs: int) -> None:
    model = open_tiny(n_outputs=64)
    tokens = np.random.default_rng(0).integers(0, tiny.N_VOCAB, 32).tolist()
    scored = np.arange(32) % 4 != 1
    (window,) = windows(model, tokens, 32, scored=scored)
    parts = list(logits(model.engine, window, n_batch, n_outputs))
    at = np.flatnonzero(window.scored)
    assert np.concatenate([targets for _, targets in parts]).tolist() == [tokens[i] for i in at]
    want = model.logits(tokens)[at - 1]
    np.testing.assert_allclose(np.concatenate([rows for rows, _ in parts]), want, rtol=0, atol=2e-5)
    assert model.engine.pool.free == model.engine.pool.n_pages


def test_logits_of_a_large_vocabulary_come_in_slices() -> None:
    assert outputs_for(1024, 512) == 256
    assert 4 * 151_936 * outputs_for(151_936, 512) <= LOGIT_BYTES
    assert outputs_for(1 << 30, 512) == 1
