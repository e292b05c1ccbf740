"""A model's server as a process of this machine, which asks for room before it reads weights, and one for the next."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from octavo.replicas.local import LocalProcess
from octavo.replicas.replica_process import begin, start
from octavo.replicas.setup import Setup
from octavo.router.catalog import KnownModel
from octavo.server.engine.engine_protocol import Asks, Loading


class ModelProcess(LocalProcess):
    """See `Running`; what it asks and tells goes to its launcher."""

    launcher: ModelLauncher

    async def allow(self, asks: Asks) -> None:
        await self.launcher.allow(asks)

    def show(self, loading: Loading) -> None:
        self.launcher.show(loading)


class Spare:
    """A process that has imported a server and an engine, and waits for a model. Raises OSError without room for it."""

    def __init__(self) -> None:
        self.process, self.sock = begin(_level(), {})

    async def close(self) -> None:
        """End it."""
        await LocalProcess(self.process, self.sock).close()


class ModelLauncher:
    """Starts the server of a model, see `Launcher`.

    allow  returns when there is room, raises OctavoError where there can't be
    show   is told how far it is
    spare  becomes its first process; None for another one
    """

    def __init__(
        self, model: KnownModel, allow: Callable[[Asks], Awaitable[None]], show: Callable[[Loading], None],
        spare: Spare | None = None,
    ) -> None:
        self.model, self.allow, self.show, self._spare = model, allow, show, spare

    async def start(self, number: int) -> ModelProcess:
        setup = Setup(number, self.model.engine, self.model.server, level=_level(), called=self.model.name)
        spare, self._spare = self._spare, None
        if spare is not None and spare.process.poll() is not None:  # it has ended
            spare.sock.close()
            spare = None
        process = ModelProcess(*start(setup, None if spare is None else (spare.process, spare.sock)))
        process.launcher = self
        return process

    async def close(self) -> None:
        """End the spare process, if it is one still."""
        if self._spare is not None:
            await self._spare.close()


def _level() -> int:
    return logging.getLogger("octavo").getEffectiveLevel()
