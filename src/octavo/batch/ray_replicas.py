"""Replicas as actors of Ray: each is a server's engine with its cores or its card, on this machine or in a cluster.

Actors, and not Ray Data's map_batches: that hands over a block when all of its rows are done, so a kill would lose the
rows of the blocks under way, and an engine would run empty at the end of each. Here each answer is handed over, and
written, by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from octavo.backends.cores import cores
from octavo.batch.replica import Answer, LocalReplica, ReplicaDiedError
from octavo.errors import INSTALL_RAY, BackendError, OctavoError, UsageError, import_failure
from octavo.io.listener import require_listener
from octavo.server.serve_options import EngineOptions, ServerOptions

START_S = 600.0
"""Seconds until a replica is there: a place for it, and its model."""
LIVES = 1000
"""Times that Ray starts a replica again which dies."""


class ReplicaActor:
    """What runs where a replica is. Errors are values: not all of ours can be pickled with their arguments."""

    def __init__(self, engine: EngineOptions, server: ServerOptions, step_timeout: float) -> None:
        self._replica = LocalReplica(engine, server, step_timeout)
        self._started: asyncio.Future[None] | None = None

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


class RayReplica:
    """A replica by its actor's handle."""

    def __init__(self, ray: Any, actor: Any, room: int) -> None:
        self._ray, self._actor, self.room = ray, actor, room
        self._died = False

    async def start(self) -> None:
        """Wait until the model is loaded. Raises BackendError where it can't be, or there is no place for it."""
        try:
            async with asyncio.timeout(START_S):
                wrong = await self._result(self._actor.start.remote())
        except TimeoutError:
            raise BackendError(f"Ray has had no place for a replica for {START_S:.0f} s: the same command goes on "
                               "once there is one, or with fewer --replicas") from None
        if wrong is not None:
            raise BackendError(f"a replica can't be started: {wrong}")
        self._died = False

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
            raise ReplicaDiedError(f"a replica died: {str(error).strip().splitlines()[0]}") from None


@contextmanager
def ray_replicas(
    address: str | None, n: int | None, engine: EngineOptions, server: ServerOptions, step_timeout: float
) -> Iterator[list[RayReplica]]:
    """Replicas of a model in the cluster at `address`, or on this machine for None; they are gone after the block.

    `n` is their number; None for one a card, or a node where there is none. Each has a card where there are some and
    the device allows, and else an equal part of the cores. Raises OctavoError without Ray, and for more replicas than
    there is room for.
    """
    try:
        import ray
    except Exception as error:
        raise OctavoError(f"replicas need Ray: {import_failure('ray', error, INSTALL_RAY)}") from None

    where = "on this machine" if address is None else f"at {address}"
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init(num_cpus=cores(), include_dashboard=False, **quiet)
        else:
            require_listener(address)
            ray.init(address=address, **quiet)
    except Exception as error:
        raise BackendError(f"Ray can't be reached {where}: {str(error).strip().splitlines()[0]}") from None
    try:
        n, needs, threads = _placement(ray, n, engine)
        room = LocalReplica(engine, server).room
        kind = ray.remote(ReplicaActor).options(
            max_concurrency=2 * room, max_restarts=LIVES, scheduling_strategy="SPREAD", **needs
        )
        actors = [kind.remote(replace(engine, threads=threads), server, step_timeout) for _ in range(n)]
        yield [RayReplica(ray, actor, room) for actor in actors]
    finally:
        ray.shutdown()


def _placement(ray: Any, n: int | None, engine: EngineOptions) -> tuple[int, dict[str, int], int]:
    """How many replicas there are, what Ray is to reserve for each, and their threads.

    Raises UsageError for more than there is room for.
    """
    has, nodes = ray.cluster_resources(), [node for node in ray.nodes() if node["Alive"]]
    cards, all_cores = int(has.get("GPU", 0)), int(has.get("CPU", 0))
    on_cards = engine.device == "gpu" or (engine.device == "auto" and cards > 0)
    n = n or (cards if on_cards else len(nodes)) or 1
    if on_cards and n > cards:
        raise UsageError(f"--replicas is {n}, and Ray has {cards} GPUs (allowed: a GPU for each, or --device cpu)")
    smallest = min((int(node["Resources"].get("CPU", 0)) for node in nodes), default=0)
    threads = engine.threads or max(1, min(smallest, all_cores // n))
    places = sum(int(node["Resources"].get("CPU", 0)) // threads for node in nodes)
    if places < n:
        raise UsageError(f"--replicas is {n}, and Ray has {all_cores} cores (allowed: {places} of {threads} threads)")
    return n, {"num_cpus": threads, **({"num_gpus": 1} if on_cards else {})}, threads
