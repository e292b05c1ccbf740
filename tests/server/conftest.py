"""A loaded model and a running server, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import octavo
from octavo.runtime import Model
from tests.server.running import Server, running_model


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    with octavo.load("demo", max_sequences=8, device="cpu") as loaded:
        yield loaded


@pytest.fixture(scope="session")
def server(model: Model) -> Iterator[Server]:
    with running_model(model) as found:
        yield found
