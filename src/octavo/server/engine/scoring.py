"""How likely the tokens of a text are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from octavo.formats.spec import F32
from octavo.runtime.cache.page_pool import Sequence as Tokens
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.thread import Pieces
from octavo.runtime.output.reply import LogProbs
from octavo.runtime.sampling.sampler import largest


def scores(
    engine: Engine, tokens: Sequence[int], k: int, n_known: int, room: Callable[[], int]
) -> Pieces[list[LogProbs]]:
    """For each token but the first how likely it is after those before it, and the `k` likeliest there.

    It is computed in steps of up to `room()` tokens. Raises ContextFullError for a text that does not fit,
    CacheFullError where others hold the pages.
    """
    found: list[LogProbs] = []
    sequence, most = Tokens(), min(engine.config.n_batch, engine.limits["outputs"])
    try:
        while (start := len(sequence)) < len(tokens):
            chunk = tokens[start : start + max(min(room(), most), 1)]
            logits = engine.step([Feed(sequence, chunk, outputs=len(chunk))])  # [chunk, n_vocab]
            found += _likely(logits[:, :n_known], tokens[start + 1 : start + 1 + len(chunk)], k)
            yield
    finally:
        engine.pool.release(sequence)
    return found


def _likely(logits: F32, after: Sequence[int], k: int) -> Iterator[LogProbs]:
    for row, token in zip(logits, after, strict=False):  # a text's last row is after no token of it
        top = row.max()
        values = row - (top + np.log(np.exp((row - top).astype(np.float64)).sum()))
        places = largest(row, k) if k else np.empty(0, np.int64)
        places = places[np.argsort(-values[places], kind="stable")]
        yield LogProbs(float(values[token]), tuple((int(i), float(values[i])) for i in places))
