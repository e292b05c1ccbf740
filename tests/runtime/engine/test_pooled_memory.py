"""Of a text only what is wanted stays in memory while others are computed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from octavo.formats.spec import F32
from octavo.runtime.engine.batch import Feed
from octavo.runtime.text_embedding import Embedder, Pooling, pooled
from octavo.runtime.token_vectors import VectorSteps

TOKENS, WIDTH, TEXTS = 64, 256, 16


class _Alone(Embedder):
    """An embedder of an encoder, with steps that compute nothing."""

    def __init__(self) -> None:
        self._shared = None

    def _require_fitting(self, tokens: object) -> None:
        pass

    def _groups(self, lengths: list[int]) -> list[list[int]]:  # type: ignore[override]
        return [list(range(i, i + 4)) for i in range(0, len(lengths), 4)]

    def _step(self, texts: list[list[int]], seconds: list[int]) -> list[F32]:
        return np.split(np.ones((TOKENS * len(texts), WIDTH), np.float32), len(texts))


class _Shared(VectorSteps):
    """Steps of four texts beside a model that generates, which compute nothing."""

    def __init__(self) -> None:
        self._sizes: dict[int, list[int]] = {}
        self.engine: Any = SimpleNamespace(pool=SimpleNamespace(release=lambda sequence: None))

    def _parts(self, texts, waiting, held, room):  # type: ignore[no-untyped-def]
        chosen = waiting[-4:]
        held |= {i: texts[i] for i in chosen}
        return [(i, texts[i]) for i in chosen]

    def _step(self, feeds: list[Feed]) -> list[F32]:
        return np.split(np.ones((TOKENS * len(feeds), WIDTH), np.float32), len(feeds))


class _Sharing(_Alone):
    def __init__(self) -> None:
        self._shared = _Shared()


@pytest.mark.parametrize("made", [_Alone, _Sharing])
@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_memory_is_a_vector_a_text(made: Callable[[], Embedder], pooling: Pooling) -> None:
    def held(n: int) -> int:
        texts = [[0] * TOKENS for _ in range(n)]
        tracemalloc.start()
        steps = made().computed(texts, lambda: TOKENS, kept=partial(pooled, pooling=pooling))
        found = None
        try:
            while True:
                next(steps)
        except StopIteration as end:
            found = end.value
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [v.shape for v in found] == [(WIDTH,)] * n
        return peak

    held(TEXTS)
    more = (held(16 * TEXTS) - held(TEXTS)) / (15 * TEXTS)
    assert more < 1.5 * WIDTH * 4 + 500  # a vector, and Python's objects; all tokens' are 64 vectors
