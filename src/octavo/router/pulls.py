"""Models of the hub that are downloaded, or removed, while the front serves: told as events as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from threading import Event
from time import monotonic
from typing import Any

from octavo.errors import HubError, OctavoError
from octavo.io.hub.name import HubName, parse
from octavo.router.events import Events
from octavo.server.http.api_errors import ApiError, bad

log = logging.getLogger("octavo")
TOLD_S = 0.2
"""Seconds after which it is told again how much is there."""


class StoppedError(HubError):
    """A download that nobody wants any more; what is there of it is kept."""


@dataclass
class Pull:
    """A download: bytes that are there, and of how many; `why` it could not be."""

    name: HubName
    done: int = 0
    total: int = 0
    stopped: Event = field(default_factory=Event)
    task: asyncio.Task[None] | None = None
    why: str | None = None

    @property
    def progress(self) -> dict[str, Any]:
        """By its name, as llama-server has it by addresses."""
        return {str(self.name): {"done": self.done, "total": self.total}}


class Pulls:
    """Downloads, each in a thread.

    changed  is called when one has ended, or a model is removed
    """

    def __init__(self, events: Events, changed: Callable[[], Awaitable[None]]) -> None:
        self._events, self._changed = events, changed
        self._pulls = dict[str, Pull]()

    def find(self, text: str) -> Pull | None:
        """The download of this name, if there is one under way."""
        pull = self._pulls.get(text)
        return pull if pull is not None and pull.task is not None else None

    async def begin(self, text: str) -> Pull:
        """Begin to pull a model. Raises ApiError for what is not a name of one, or not on the hub."""
        name = parse(text)
        if name is None:
            raise bad(f"{text!r} is not a hub name (allowed: ORG/REPO, ORG/REPO:QUANT, each with @REVISION)", "model")
        if text in self._pulls:
            raise bad(f"{text} is being downloaded already", "model")
        pull = self._pulls[text] = Pull(name)
        try:
            await asyncio.to_thread(_require, name)
        except OctavoError as error:
            del self._pulls[text]
            raise bad(f"{text} can't be downloaded: {error}", "model") from None
        self._events.tell(text, "model_status", {"status": "downloading"})
        pull.task = asyncio.get_running_loop().create_task(self._pull(text, pull))
        return pull

    async def _pull(self, text: str, pull: Pull) -> None:
        from octavo.io.model_path import download

        loop, told = asyncio.get_running_loop(), 0.0

        def show(what: str, done: int, total: int | None) -> None:
            nonlocal told
            if pull.stopped.is_set():
                raise StoppedError("it was stopped")
            if total is not None:
                pull.done, pull.total = done, total
                if (now := monotonic()) - told >= TOLD_S:
                    told = now
                    loop.call_soon_threadsafe(self._events.tell, text, "download_progress", pull.progress)

        try:
            await asyncio.to_thread(download, pull.name, show)
        except OctavoError as error:
            log.error("%s can't be downloaded: %s", text, error)
            pull.why = str(error)
            self._events.tell(text, "download_failed", {"why": pull.why})
        else:
            await self._changed()
            self._events.tell(text, "download_finished")
        finally:
            self._pulls.pop(text, None)

    def cancel(self, text: str) -> bool:
        """Stop a download: whether there is one."""
        if (pull := self._pulls.get(text)) is None:
            return False
        pull.stopped.set()
        return True

    def close(self) -> None:
        """Stop all, for the next start to go on with."""
        for text in self._pulls:
            self.cancel(text)

    async def remove(self, text: str) -> None:
        """Remove a model from the hub's cache. Raises ApiError where it is not there."""
        try:
            await asyncio.to_thread(_remove, text)
        except HubError as error:
            raise ApiError(404, str(error), param="model", code="model_not_found") from None
        await self._changed()
        self._events.tell(text, "model_remove")

    def rows(self) -> list[dict[str, Any]]:
        """Downloads as models of /models."""
        return [{"id": text, "object": "model", "owned_by": "octavo", "source": "cache",
                 "status": {"value": "downloading", "progress": pull.progress}} for text, pull in self._pulls.items()]


def _require(name: HubName) -> None:
    """Raise HubError unless the hub has models by this name."""
    from octavo.io.hub.download import offered
    from octavo.io.hub.variants import meant

    found = offered(name)
    if not meant(name, found):
        raise HubError(f"{name.repo} has no model {name.what or ''} (choices: {', '.join(v.label for v in found)})")


def _remove(text: str) -> None:
    from octavo.io.hub.inventory import remove

    name = parse(text)
    if name is None:
        raise HubError(f"{text!r} is not a hub name")
    remove(name).strategy.execute()
