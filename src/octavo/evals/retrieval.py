"""Retrieval: what share of values a model finds again in a context full of keys and values.

A row is pairs of a key and a value in any order, each key once, and then questions: a key of the pairs, after which its
value is the right token. It is for models whose vocabulary has tokens for keys and values, `KEY` and `VALUE`, such as
`tools/demo/retrieval.py` trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.errors import UsageError
from octavo.evals.accuracy import Tally
from octavo.evals.windows import TextWindow, logits, step_sizes
from octavo.runtime import Model
from octavo.text import Tokenizer

KEY, VALUE = "<key {}>", "<value {}>"
"""The texts of tokens, by number from 0."""
ASKED_PART = 4
"""One part in this many of a row is questions and answers."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RetrievalRow:
    """Tokens int64 [n], and which of them are the keys of questions, bool [n]: the token after one is its answer."""

    tokens: I64
    asked: npt.NDArray[np.bool_]


def draw(rng: np.random.Generator, keys: I64, values: I64, length: int) -> RetrievalRow:
    """A row of `length` tokens from token ids of keys and of values; more than half as many keys are needed."""
    asked = length // (2 * ASKED_PART)
    pairs = length // 2 - asked
    chosen, given = rng.choice(keys, pairs, replace=False), rng.choice(values, pairs)
    which = rng.choice(pairs, asked, replace=False)
    order = np.concatenate([np.arange(pairs), which])
    tokens = np.stack([chosen[order], given[order]], axis=1).reshape(-1)
    mask = np.zeros(len(tokens), bool)
    mask[2 * pairs :: 2] = True
    return RetrievalRow(tokens, mask)


def retrieve(
    model: Model, length: int, rows: int = 8, seed: int = 0, progress: Callable[[int, int, float], None] | None = None
) -> Tally:
    """How many values a model finds again in `rows` rows of `length` tokens, as the likeliest of all tokens.

    Raises UsageError for a model without tokens of keys and values, or with too few, and for a length that is not
    between two questions and its context.
    """
    keys, values = key_tokens(model.tokenizer), value_tokens(model.tokenizer)
    least, most = 4 * ASKED_PART, min(model.engine.n_ctx, len(keys) * 2 * ASKED_PART // (ASKED_PART - 1))
    if not least <= length <= most:
        raise UsageError(
            f"rows have {length} tokens (allowed: {least} to {most}, for this context and {len(keys)} keys)"
        )
    if rows < 1:
        raise UsageError(f"rows is {rows} (allowed: 1 or more)")
    rng, right, asked = np.random.default_rng(seed), 0, 0
    for done in range(rows):
        row = draw(rng, keys, values, length)
        window = TextWindow(row.tokens.tolist(), np.roll(row.asked, 1))
        for found, answers in logits(model.engine, window, *step_sizes(model.engine)):
            right += int((found.argmax(axis=1) == answers).sum())
            asked += len(answers)
        if progress is not None:
            progress(done + 1, rows, right / asked)
    return Tally(right, asked)


def key_tokens(tokenizer: Tokenizer) -> I64:
    return _named(tokenizer, KEY)


def value_tokens(tokenizer: Tokenizer) -> I64:
    return _named(tokenizer, VALUE)


def _named(tokenizer: Tokenizer, text: str) -> I64:
    """The tokens called so, numbered from 0 on."""
    ids = {name: i for i, name in enumerate(tokenizer.texts)}
    found: list[int] = []
    while (name := text.format(len(found))) in ids:
        found.append(ids[name])
    if not found:
        raise UsageError(f"the vocabulary has no token {text.format(0)} (allowed: a model made for retrieval)")
    return np.array(found, np.int64)
