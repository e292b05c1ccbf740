"""A model's server as a process of this machine, which asks for room before it reads weights."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from octavo.replicas.local import LocalProcess
from octavo.replicas.replica_process import start
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


class ModelLauncher:
    """Starts the server of a model, see `Launcher`.

    allow  returns when there is room, raises OctavoError where there can't be
    show   is told how far it is
    """

    def __init__(
        self, model: KnownModel, allow: Callable[[Asks], Awaitable[None]], show: Callable[[Loading], None]
    ) -> None:
        self.model, self.allow, self.show = model, allow, show

    async def start(self, number: int) -> ModelProcess:
        level = logging.getLogger("octavo").getEffectiveLevel()
        setup = Setup(number, self.model.engine, self.model.server, level=level, called=self.model.name)
        process = ModelProcess(*start(setup))
        process.launcher = self
        return process

    async def close(self) -> None:
        """There is nothing to give back."""
