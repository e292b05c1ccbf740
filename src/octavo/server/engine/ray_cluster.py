"""A Ray cluster as the place of several engines: connecting to it, and what Ray reserves for each of them."""

from __future__ import annotations

import logging
from typing import Any

from msgspec.structs import replace

from octavo.backends.cores import cores
from octavo.errors import INSTALL_RAY, BackendError, UsageError, import_failure
from octavo.io.listener import require_listener
from octavo.server.serve_options import EngineOptions

LOCAL = "local"
"""In place of an address: a Ray of this machine, which ends with the program that started it."""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


class RayCluster:
    """A connection to the cluster at `address`, with room for `n` engines; None for as many as it has room for.

    n       how many they are
    engine  what each loads: its share of the threads, and how many share the memory of a machine
    needs   what Ray reserves for each: the GPUs of its ranks and stages, or its CPUs; all of them on one node

    Raises UsageError where Ray is not installed, or no node has what an engine needs, or there are too few of them;
    BackendError where the cluster can't be reached.
    """

    def __init__(self, address: str, n: int | None, engine: EngineOptions) -> None:
        self.ray = _connected(address)
        try:
            nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            self.n, self.engine, self.needs = _placed(nodes, n, engine)
        except BaseException:
            self.close()
            raise

    def start(self, kind: type, *given: object, **options: object) -> Any:
        """Start an actor of a class: its handle, at once. Ray spreads them over the nodes."""
        found = {"scheduling_strategy": "SPREAD", **self.needs, **options}
        return self.ray.remote(kind).options(**found).remote(*given)

    def close(self) -> None:
        self.ray.shutdown()


def first_line(error: Exception) -> str:
    """What an error of Ray's says, without the lines on where and how."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _connected(address: str) -> Any:
    try:
        import ray
    except Exception as error:
        raise UsageError(f"replicas on Ray need ray: {import_failure('ray', error, INSTALL_RAY)}") from None
    try:
        if address == LOCAL:
            ray.init(num_cpus=cores(), include_dashboard=False, **QUIET)
        else:
            require_listener(address)
            ray.init(address=address, **QUIET)
    except Exception as error:
        if address == "auto" and isinstance(error, ConnectionError):
            raise BackendError("no Ray runs on this machine: start one with `ray start --head`, or use "
                               f"--ray-address HOST:PORT or {LOCAL}") from None
        where = "on this machine" if address == LOCAL else f"at {address}"
        raise BackendError(f"Ray can't be reached {where}: {first_line(error)}") from None
    return ray


def _placed(
    nodes: list[dict[str, float]], n: int | None, engine: EngineOptions
) -> tuple[int, EngineOptions, dict[str, int]]:
    """How many engines there are in a cluster of these nodes, what each loads, and what Ray reserves for it."""
    gpus, cpus = ([int(node.get(kind, 0)) for node in nodes] for kind in ("GPU", "CPU"))
    if engine.device == "gpu" or (engine.device == "auto" and any(gpus)):
        each, most = engine.tensor_parallel * engine.pipeline, max(gpus, default=0)
        if each > most:
            has = f"no node of the Ray cluster has {each} GPUs (allowed: up to {most}, or --device cpu)"
            given = "--tensor-parallel" if engine.pipeline == 1 else "--tensor-parallel times --pipeline"
            raise UsageError(f"{given} is {each}, but {has}" if most else "the Ray cluster has no GPU")
        rooms = [count // each for count in gpus]
        n = n or sum(rooms)
        if n > sum(rooms):
            what = "a GPU" if each == 1 else f"{each} GPUs of one node"
            raise UsageError(f"--replicas is {n}, but each needs {what} (allowed: up to {sum(rooms)} in this Ray "
                             "cluster, or --device cpu)")
        share = min(count // room for count, room in zip(cpus, rooms, strict=True) if room)
        return n, replace(engine, threads=engine.threads or max(1, share)), {"num_gpus": each}
    n, most = n or max(1, len(nodes)), max(cpus, default=0)
    threads = engine.threads or next((t for t in range(most, 0, -1) if sum(c // t for c in cpus) >= n), 1)
    rooms = [count // threads for count in cpus]
    if not any(rooms):
        raise UsageError(f"--threads is {threads} (allowed: up to {most}, the CPUs of the cluster's largest node)")
    if n > sum(rooms):
        threaded = f" with {threads} threads" if threads > 1 else ""
        raise UsageError(f"--replicas is {n} (allowed: up to {sum(rooms)}{threaded}, as the Ray cluster has "
                         f"{sum(cpus)} CPUs)")
    return n, replace(engine, threads=threads, servers=min(n, max(rooms))), {"num_cpus": threads}
