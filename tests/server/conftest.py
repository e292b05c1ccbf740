"""A loaded model and a running server, for all tests of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import octavo
from octavo.runtime import Model
from tests.server.live_server import Server, running_model


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    with octavo.load("demo", max_sequences=8, device="cpu") as loaded:
        yield loaded


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The client of that name. It asks asyncio for an event loop, and would leave open what is made for it."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield litellm
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="session")
def server(model: Model) -> Iterator[Server]:
    with running_model(model) as found:
        yield found
