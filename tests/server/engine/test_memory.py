"""How much memory the cache of a server has where nobody says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.graph.node import Node, Sizes
from octavo.io.system_memory import Room
from octavo.runtime import Model
from octavo.runtime.cache.page_pool import page_bytes
from octavo.server.engine import engine_model
from octavo.server.serve_options import EngineOptions

GIB = 1 << 30


class Card(ReferenceBackend):
    """A backend with so much memory of its own."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self._free = free

    def free(self) -> int:
        return self._free

    def needs(self, nodes: Sequence[Node], limits: Sizes) -> int:
        return 0


def usual(model: Model, backend: object, **options: Any) -> int | None:
    asked = EngineOptions("demo", max_sequences=4, **options)
    return engine_model.usual_kv_memory(asked, model.engine.model, [backend])  # type: ignore[list-item]


def test_whole_contexts_where_there_is_room(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_model, "room", lambda: Room(64 * GIB))
    of_page = page_bytes(model.engine.graph)
    assert usual(model, object()) == 4 * (1024 // 64) * of_page
    assert usual(model, object(), n_ctx=100) == 4 * 2 * of_page
    assert usual(model, Card(64 * GIB)) == usual(model, object())


def test_a_share_of_what_is_free(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    of_page = page_bytes(model.engine.graph)
    monkeypatch.setattr(engine_model, "room", lambda: Room(12 * of_page))
    assert usual(model, object()) == 3 * of_page
    stored = sum(info.nbytes for info in model.file.tensors.values())
    assert usual(model, Card(stored + 10 * of_page)) == max(5 * of_page, (stored + 10 * of_page) // 8)
    monkeypatch.setattr(engine_model, "room", lambda: Room(0))
    assert usual(model, object()) == of_page
    monkeypatch.setattr(engine_model, "room", lambda: None)
    assert usual(model, object()) is None
