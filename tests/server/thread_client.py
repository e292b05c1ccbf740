"""ThreadClient: an engine in a thread of this process, of a model that is loaded already."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from octavo.runtime.model import Model
from octavo.server.engine.client import EngineClient
from octavo.server.engine.engine_protocol import Quit, ToEngine, ToFront
from octavo.server.worker import EngineLoop

log = logging.getLogger("octavo")


class ThreadClient(EngineClient):
    """Has no process to lose: an engine that fails stays dead."""

    def __init__(self, model: Model, *, itl_target: float = 0.0, embeddings: bool = False) -> None:
        super().__init__()
        self.loop = EngineLoop(model, self._came, itl_target=itl_target, embeddings=embeddings)
        self._thread = Thread(target=self._run, daemon=True, name="engine")
        self._home: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._home = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        self.loop.inbox.put(Quit())
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:
            log.exception("the engine failed")
            self._call(self.died, str(error))

    def _came(self, message: ToFront) -> None:
        self._call(self.deliver, message)

    def _call(self, take: Callable[..., None], said: ToFront | str) -> None:
        assert self._home is not None
        with suppress(RuntimeError):  # the loop is closed
            self._home.call_soon_threadsafe(take, said)

    def _send(self, message: ToEngine) -> None:
        self.loop.inbox.put(message)
