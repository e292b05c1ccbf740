"""Replicas as Ray actors: each starts the server's process on the node that Ray chooses, with its cores or its card.

The front stays where it was started, and asks replicas at the addresses of their nodes. Where a node or an actor ends,
another actor is started, as for a process that ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.replicas.local import LocalProcess
from octavo.replicas.replica import Served
from octavo.replicas.replica_process import start
from octavo.replicas.setup import Setup, encode
from octavo.server.engine.ray_cluster import LOCAL, RayCluster, first_line
from octavo.server.serve_options import EngineOptions, ServerOptions

log = logging.getLogger("octavo")
PLACE_S = 30.0
"""Seconds without a place for a replica after which that is said."""


class ReplicaActor:
    """A replica's process on the actor's node, see `Running`; setup and answer are msgpack."""

    def __init__(self, setup: bytes) -> None:
        import ray.util

        found = msgspec.msgpack.decode(setup, type=Setup)
        found.host = found.host or ray.util.get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
        self._process = LocalProcess(*start(found))

    async def placed(self) -> None:
        """Answer: the actor has its place."""

    async def served(self) -> bytes:
        return encode(await self._process.served())

    async def ended(self) -> str:
        return await self._process.ended()

    async def stop(self) -> None:
        self._process.stop()


class RayReplica:
    """An actor as seen from the front, see `Running`."""

    def __init__(self, ray: Any, actor: Any, number: int, needs: Mapping[str, int]) -> None:
        self._ray, self.actor, self._number, self._needs = ray, actor, number, needs

    async def _wait_for_a_place(self) -> None:
        placed = asyncio.ensure_future(self.actor.placed.remote())
        await asyncio.wait([placed], timeout=PLACE_S)
        if placed.done():
            placed.exception()  # `served` tells of it
            return
        needs = ", ".join(f"{n} {name.removeprefix('num_')}" for name, n in self._needs.items())
        log.warning("replica %d waits for a node of the Ray cluster with %s free", self._number, needs)

    async def served(self) -> Served:
        await self._wait_for_a_place()
        try:
            return msgspec.msgpack.decode(await self.actor.served.remote(), type=Served)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None

    async def ended(self) -> str:
        try:
            return str(await self.actor.ended.remote())
        except self._ray.exceptions.RayActorError as error:
            return f"its actor ended: {first_line(error)}"

    def stop(self) -> None:
        self.actor.stop.remote()

    async def close(self) -> None:
        """The process ends with its actor, to which it holds a socket."""
        self._ray.kill(self.actor)


class RayLauncher:
    """Starts replicas in a cluster. Raises as `RayCluster`."""

    def __init__(self, n: int, engine: EngineOptions, server: ServerOptions, address: str) -> None:
        self._cluster = RayCluster(address, n, engine)
        level = logging.getLogger("octavo").getEffectiveLevel()
        host = "127.0.0.1" if address == LOCAL else ""
        self._setup = Setup(0, self._cluster.engine, server, host, level)

    async def start(self, number: int) -> RayReplica:
        setup = encode(msgspec.structs.replace(self._setup, number=number))
        actor = await asyncio.to_thread(lambda: self._cluster.start(ReplicaActor, setup, max_concurrency=8))
        return RayReplica(self._cluster.ray, actor, number, self._cluster.needs)

    async def close(self) -> None:
        await asyncio.to_thread(self._cluster.close)
