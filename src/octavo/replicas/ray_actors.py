"""Replicas as Ray actors: each starts the server's process on the node that Ray chooses, with its cores or its card.

The front stays where it was started, and asks replicas at the addresses of their nodes. Where a node or an actor ends,
another actor is started, as for a process that ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from octavo.backends.cores import cores
from octavo.errors import INSTALL_RAY, BackendError, UsageError
from octavo.io.listener import require_listener
from octavo.replicas.local import LocalProcess
from octavo.replicas.replica import Served, Setup, encode, start
from octavo.server.serve_options import EngineOptions, ServerOptions

LOCAL = "local"
"""In place of an address: a Ray of this machine, which ends with the front."""


class ReplicaActor:
    """A replica's process on the actor's node, see `Running`; setup and answer are msgpack."""

    def __init__(self, setup: bytes) -> None:
        import ray.util

        found = msgspec.msgpack.decode(setup, type=Setup)
        found.host = found.host or ray.util.get_node_ip_address()  # type: ignore[no-untyped-call, unused-ignore]
        self._process = LocalProcess(*start(found))

    async def served(self) -> bytes:
        return encode(await self._process.served())

    async def ended(self) -> str:
        return await self._process.ended()

    async def stop(self) -> None:
        self._process.stop()


class RayReplica:
    """An actor as seen from the front, see `Running`."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self.actor = ray, actor

    async def served(self) -> Served:
        try:
            return msgspec.msgpack.decode(await self.actor.served.remote(), type=Served)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None

    async def ended(self) -> str:
        try:
            return str(await self.actor.ended.remote())
        except self._ray.exceptions.RayActorError as error:
            return f"its actor ended: {str(error).strip().splitlines()[0]}"

    def stop(self) -> None:
        self.actor.stop.remote()

    async def close(self) -> None:
        """The process ends with its actor, to which it holds a socket."""
        self._ray.kill(self.actor)


class RayLauncher:
    """Starts replicas in a cluster.

    Raises UsageError where Ray is not installed, or has fewer cards or cores than replicas, BackendError where it can't
    be reached.
    """

    def __init__(self, n: int, engine: EngineOptions, server: ServerOptions, step_timeout: float, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError(f"--ray-address needs ray: ray is not installed ({INSTALL_RAY})") from None
        self._ray = ray
        try:
            if address == LOCAL:
                ray.init(num_cpus=cores(), include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            else:
                require_listener(address)
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            if address == "auto" and isinstance(error, ConnectionError):
                raise BackendError("no Ray runs on this machine: start one with `ray start --head`, or use "
                                   f"--ray-address HOST:PORT or {LOCAL}") from None
            where = "on this machine" if address == LOCAL else f"at {address}"
            raise BackendError(f"Ray can't be reached {where}: {str(error).strip().splitlines()[0]}") from None
        there = ray.cluster_resources()  # type: ignore[no-untyped-call, unused-ignore]
        gpus = 0 if engine.device in ("cpu", "reference") else int(there.get("GPU", 0))
        each = engine.tensor_parallel * engine.pipeline
        kind, most = ("GPU", gpus // each) if gpus else ("CPU", int(there.get("CPU", 0)))
        if n > most:
            ray.shutdown()
            has = f"{gpus if gpus else most} {kind}s"
            raise UsageError(f"--replicas is {n} (allowed: up to {most}, as the Ray cluster has {has})")
        threads = engine.threads or max(1, most // n)
        self._needs = {"num_gpus": each} if gpus else {"num_cpus": threads}
        if not gpus:
            engine = msgspec.structs.replace(engine, threads=threads, servers=n)
        level = logging.getLogger("octavo").getEffectiveLevel()
        self._setup = Setup(0, engine, server, step_timeout, "127.0.0.1" if address == LOCAL else "", level)

    async def start(self, number: int) -> RayReplica:
        setup = encode(msgspec.structs.replace(self._setup, number=number))
        options = {"scheduling_strategy": "SPREAD", "max_concurrency": 8, **self._needs}
        actor = await asyncio.to_thread(lambda: self._ray.remote(ReplicaActor).options(**options).remote(setup))
        return RayReplica(self._ray, actor)

    async def close(self) -> None:
        await asyncio.to_thread(self._ray.shutdown)
