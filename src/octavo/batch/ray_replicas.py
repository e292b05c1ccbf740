"""Replicas as actors of Ray: each is a server's engine with its cores or its card, on this machine or in a cluster.

Actors, and not Ray Data's map_batches: that hands over a block when all of its rows are done, so a kill would lose the
rows of the blocks under way, and an engine would run empty at the end of each. Here each answer is handed over, and
written, by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavo.batch.replica import LocalReplica, ReplicaDiedError
from octavo.errors import BackendError, OctavoError
from octavo.server.engine.ray_cluster import LOCAL, RayCluster, first_line
from octavo.server.http.inner_call import Answer
from octavo.server.serve_options import EngineOptions, ServerOptions

START_S = 600.0
"""Seconds until a replica is there: a place for it, and its model."""
LIVES = 1000
"""Times that Ray starts a replica again which dies."""
LOADS, AGAIN_S = 3, 0.2
"""Times that a replica may end while it loads its model, and seconds between looks for whether it is there again."""


class ReplicaActor:
    """What runs where a replica is. Errors are values: not all of ours can be pickled with their arguments."""

    def __init__(self, engine: EngineOptions, server: ServerOptions) -> None:
        self._replica = LocalReplica(engine, server)
        self._started: asyncio.Future[None] | None = None

    async def placed(self) -> None:
        """Answer: the actor is there."""

    async def start(self) -> str | None:
        """Load the model, once. What is wrong where it can't be; None for nothing."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._replica.start())
        try:
            await self._started
        except OctavoError as error:
            return str(error)
        return None

    async def answer(self, url: str, body: bytes, request_id: str) -> tuple[int, bytes] | str:
        """Status and body of an answer, or why the engine is gone. Ray may have begun this actor anew."""
        try:
            if (wrong := await self.start()) is not None:
                return wrong
            found = await self._replica.answer(url, body, request_id)
        except OctavoError as error:
            return str(error)
        return found.status, found.body

    async def close(self) -> None:
        await self._replica.close()


class _AwayError(ReplicaDiedError):
    """An actor does not answer: it has just died, or Ray is about to start it again."""


class RayReplica:
    """A replica by its actor's handle."""

    def __init__(self, ray: Any, actor: Any, room: int) -> None:
        self._ray, self._actor, self.room = ray, actor, room
        self._died = False

    async def start(self) -> None:
        """Wait until the model is loaded. Raises BackendError where it can't be, or there is no place for it."""
        try:
            async with asyncio.timeout(START_S):
                wrong = await self._load()
        except TimeoutError:
            raise BackendError(f"Ray has had no place for a replica for {START_S:.0f} s: the same command goes on "
                               "once there is one, or with fewer --replicas") from None
        if wrong is not None:
            raise BackendError(f"a replica can't be started: {wrong}")
        self._died = False

    async def _load(self) -> str | None:
        """Have the actor load the model: what is wrong. While Ray starts it again it is waited for."""
        for again in range(LOADS):
            try:
                while not await self._is_there():
                    await asyncio.sleep(AGAIN_S)
                wrong: str | None = await self._result(self._actor.start.remote())
                return wrong
            except ReplicaDiedError as error:  # no answer's fault
                if again == LOADS - 1:
                    return str(error)
        raise AssertionError("the last error is returned")

    async def _is_there(self) -> bool:
        try:
            await self._result(self._actor.placed.remote())
        except _AwayError:
            return False
        return True

    async def answer(self, url: str, body: bytes, request_id: str) -> Answer:
        if self._died:
            await self.start()
        found = await self._result(self._actor.answer.remote(url, body, request_id))
        if isinstance(found, str):
            raise ReplicaDiedError(found)
        return Answer(found[0], request_id, found[1])

    async def close(self) -> None:
        try:
            await self._result(self._actor.close.remote())
        except ReplicaDiedError:
            return
        finally:
            self._ray.kill(self._actor)

    async def _result(self, reference: Any) -> Any:
        try:
            return await reference
        except self._ray.exceptions.RayError as error:
            self._died = True
            away = isinstance(error, self._ray.exceptions.ActorUnavailableError)
            raise (_AwayError if away else ReplicaDiedError)(f"a replica died: {first_line(error)}") from None


@contextmanager
def ray_replicas(
    address: str | None, n: int | None, engine: EngineOptions, server: ServerOptions
) -> Iterator[list[RayReplica]]:
    """Replicas of a model in the cluster at `address`, or on this machine for None; they are gone after the block.

    `n` is their number; None for as many as there are GPUs for, or one a node where there is no GPU. Raises as
    `RayCluster`.
    """
    cluster = RayCluster(address or LOCAL, n, engine)
    try:
        room = LocalReplica(engine, server).room
        yield [
            RayReplica(cluster.ray, cluster.start(
                ReplicaActor, cluster.engine, server, max_concurrency=2 * room, max_restarts=LIVES
            ), room)
            for _ in range(cluster.n)
        ]
    finally:
        cluster.close()
