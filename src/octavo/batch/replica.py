"""A model that answers a batch's requests: the server's own application and engine, called without a socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from starlette.types import ASGIApp

from octavo.errors import OctavoError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.io.model_path import resolve
from octavo.server.app import make_app
from octavo.server.engine.client import EngineClient, EngineDiedError
from octavo.server.engine.process import ProcessClient
from octavo.server.generation.service import Service
from octavo.server.http.inner_call import Answer, asked
from octavo.server.serve_options import EngineOptions, Limits, ServerOptions
from octavo.text import Tokenizer
from octavo.text.tokenizers_package import be_sequential

log = logging.getLogger("octavo")
AHEAD = 2
"""Requests that are asked, for each reply that may be in a step: as many wait as run, so that no step has room."""
LIMITS = Limits(queue=1 << 20, queue_tokens=1 << 50, bodies=1 << 40)
TRIES, LONGEST_PAUSE_S = 10, 10.0
"""Times that a request is asked which can't be answered now, and seconds between two."""
ENDED = "engine_ended"

Make = Callable[[], EngineClient]


class ReplicaDiedError(OctavoError):
    """What answers is gone, and with it the answers under way."""


class Replica(Protocol):
    """What answers requests; `room` of them at a time keep it busy, once `start` is done."""

    room: int

    async def start(self) -> None: ...
    async def answer(self, url: str, body: bytes, request_id: str) -> Answer: ...
    async def close(self) -> None: ...


class LocalReplica:
    """An engine in a process of its own, on this machine."""

    def __init__(self, engine: EngineOptions, server: ServerOptions, make: Make | None = None) -> None:
        """`make` makes another client of the engine."""
        self.engine, self.server = engine, server
        self.room = AHEAD * engine.max_sequences
        self._make = make or (lambda: ProcessClient(engine))
        self._file: GGUFFile | None = None
        self._client: EngineClient | None = None
        self._app: ASGIApp | None = None

    async def start(self) -> None:
        """Load the model. Raises OctavoError where that can't be done."""
        be_sequential()
        self._file = file = open_model_file(resolve(self.engine.path))
        self._client = client = self._make()
        service = Service(client, file, Tokenizer.from_gguf(file), self.server)
        await client.start()
        await client.ready()
        self._app = make_app(service)

    async def answer(self, url: str, body: bytes, request_id: str) -> Answer:
        """Answer a request. Raises ReplicaDiedError where the engine ended while it was under way."""
        assert self._app is not None, "it has been started"
        for again in range(TRIES):
            found = await asked(self._app, url, body, request_id)
            if found.status == 503 and code_of(found.body) == ENDED:
                raise ReplicaDiedError(message_of(found.body))
            if found.status not in (429, 503) or again == TRIES - 1:
                return found
            await asyncio.sleep(min(0.1 * 2**again, LONGEST_PAUSE_S))
            await self._up()
        raise AssertionError("the last try is returned")

    async def _up(self) -> None:
        """Wait until there is an engine again. Raises EngineDiedError where none can be started."""
        assert self._client is not None
        for again in range(TRIES):
            try:
                await self._client.ready()
                return
            except EngineDiedError:
                if again == TRIES - 1:
                    raise
                await asyncio.sleep(min(0.2 * 2**again, LONGEST_PAUSE_S))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        if self._file is not None:
            self._file.close()


def _error(body: bytes) -> dict[str, Any]:
    with suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(body)
        if isinstance(found, dict) and isinstance(found.get("error"), dict):
            error: dict[str, Any] = found["error"]
            return error
    return {}


def code_of(body: bytes) -> object:
    return _error(body).get("code")


def message_of(body: bytes) -> str:
    return str(_error(body).get("message", ""))
