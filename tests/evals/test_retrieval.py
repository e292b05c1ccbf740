"""The retrieval task: rows as they are said to be, and a model that knows no answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from octavo.errors import UsageError
from octavo.evals.retrieval import KEY, VALUE, draw, key_tokens, retrieve, value_tokens
from octavo.runtime import Model
from tests.runtime import tiny

NAMED = [KEY.format(i) for i in range(40)] + [VALUE.format(i) for i in range(8)]
NAMES = {"tokenizer.ggml.tokens": [*NAMED, *tiny.TOKENS[48:]]}


def test_a_row() -> None:
    keys, values = np.arange(100, 200), np.arange(300, 310)
    row = draw(np.random.default_rng(0), keys, values, 64)
    pairs = dict(row.tokens[:48].reshape(-1, 2).tolist())
    assert len(row.tokens) == 64
    assert len(pairs) == 24
    assert set(pairs) <= set(keys.tolist())
    assert np.flatnonzero(row.asked).tolist() == list(range(48, 64, 2))
    questions = row.tokens[48:].reshape(-1, 2).tolist()
    assert len({key for key, _ in questions}) == 8
    assert all(pairs[key] == value for key, value in questions)


def test_a_model_that_was_not_taught(open_tiny: Callable[..., Model]) -> None:
    model = open_tiny(keys=NAMES)
    assert len(key_tokens(model.tokenizer)) == 40
    assert value_tokens(model.tokenizer).tolist() == list(range(40, 48))
    seen: list[float] = []
    found = retrieve(model, 48, rows=3, progress=lambda done, total, share: seen.append(share))
    assert (found.n, len(seen)) == (18, 3)
    assert found.right <= 4
    assert found == retrieve(model, 48, rows=3)
    assert seen[-1] == found.accuracy


def test_what_is_refused(open_tiny: Callable[..., Model]) -> None:
    with pytest.raises(UsageError, match="no token <key 0>"):
        retrieve(open_tiny(), 48)
    model = open_tiny(keys=NAMES)
    with pytest.raises(UsageError, match=r"rows have 8 tokens.*16 to 64, for this context and 40 keys"):
        retrieve(model, 8)
    with pytest.raises(UsageError, match="rows is 0"):
        retrieve(model, 48, rows=0)
