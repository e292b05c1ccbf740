"""Replicas as processes of this machine: each with its share of the cores, or a card."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from octavo.backends.cores import cores
from octavo.errors import UsageError, end_of_process
from octavo.replicas.pool import ANSWER_S, LATE
from octavo.replicas.replica import Refused, Served, from_replica
from octavo.replicas.replica_process import start
from octavo.replicas.setup import ALIVE, Setup, encode
from octavo.server.engine.channel import ChannelError, frame
from octavo.server.engine.engine_protocol import Asks, Go, Loading
from octavo.server.engine.launch import GONE_S
from octavo.server.engine.process import read_payload
from octavo.server.serve_options import EngineOptions, ServerOptions

CARDS = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"


class SilentError(Exception):
    """A process that gives no sign of life, as it is stopped."""


class LocalProcess:
    """A replica's process, see `Running`. It leads a process group, which its engine is in, and ends with all of it.

    Until it serves it is asked for signs of life; what is counted are answers, so that a front that was stopped itself
    finds it well.
    """

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process, self._socket = process, sock

    async def served(self) -> Served:
        sock = self._socket.dup()
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            while True:
                if (message := await _message(reader, writer)) == ALIVE:
                    continue
                found = from_replica(message)
                if isinstance(found, Served):
                    return found
                if isinstance(found, Refused):
                    raise found.error()
                if isinstance(found, Loading):
                    self.show(found)
                else:
                    await self.allow(found)
                    writer.write(frame(encode(Go())))
        except (EOFError, OSError, ChannelError):
            return await _never()  # `ended` tells more
        finally:
            writer.close()

    async def allow(self, asks: Asks) -> None:
        """Return when there is room for the model. Raises OctavoError where there can't be."""

    def show(self, loading: Loading) -> None:
        """Be told how far it is."""

    async def ended(self) -> str:
        while (status := self.process.poll()) is None:
            await asyncio.sleep(0.02)
        return f"its process {end_of_process(status)}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # else one that is stopped would not end in order

    async def close(self) -> None:
        self._socket.close()
        self._signal_all(signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(GONE_S):
                await self.ended()

    def _signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and its engine, one that outlives it too."""
        with suppress(OSError):
            os.killpg(self.process.pid, number)


async def _message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What a process says next. Raises SilentError where it does not answer any more."""
    reading = asyncio.ensure_future(read_payload(reader))
    try:
        for _ in range(LATE):
            await asyncio.wait([reading], timeout=ANSWER_S)
            if reading.done():
                return reading.result()
            writer.write(frame(ALIVE))
    finally:
        reading.cancel()
    raise SilentError(f"its process did not answer for {LATE * ANSWER_S:g} s, and was killed")


async def _never() -> Served:
    await asyncio.Event().wait()
    raise AssertionError


class LocalLauncher:
    """Starts replicas here.

    Raises UsageError where there are fewer cards or cores than replicas, and on Windows; BackendError for device gpu
    where there is none.
    """

    def __init__(self, n: int, engine: EngineOptions, server: ServerOptions) -> None:
        if os.name == "nt":
            raise UsageError("--replicas needs Linux or macOS: Windows hands no sockets to other processes")
        self._engine, self._server = engine, server
        if engine.device not in ("auto", "cpu", "reference"):
            require_gpu()
        found, each = [] if engine.device in ("cpu", "reference") else cards(), engine.tensor_parallel * engine.pipeline
        if found and n * each > len(found):
            needs = "a card" if each == 1 else f"{each} cards"
            raise UsageError(f"--replicas is {n}, but each needs {needs} (allowed: up to {len(found) // each}, or "
                             "--device cpu)")
        if not found and n > cores():
            raise UsageError(f"--replicas is {n}, but this process may use {cores()} cores (allowed: up to {cores()})")
        self._cards = [",".join(found[i * each : (i + 1) * each]) for i in range(n)] if found else []
        if not found:
            threads = max(1, cores() // n) if engine.threads is None else engine.threads
            self._engine = msgspec.structs.replace(engine, threads=threads, servers=n)

    def setup(self, number: int) -> Setup:
        """What a replica is to serve."""
        environment = {VISIBLE: self._cards[number]} if self._cards else {}
        level = logging.getLogger("octavo").getEffectiveLevel()
        return Setup(number, self._engine, self._server, level=level, environment=environment)

    async def start(self, number: int) -> LocalProcess:
        return LocalProcess(*start(self.setup(number)))

    async def close(self) -> None:
        """There is nothing to give back."""


def require_gpu() -> None:
    """Raise BackendError without a GPU: once, rather than in each of the processes."""
    from octavo.backends.gpu.device.driver import find_driver
    from octavo.backends.gpu.device.torch_device import require_driver

    if os.environ.get("TRITON_INTERPRET") != "1":
        require_driver(find_driver())


def cards() -> Sequence[str]:
    """The cards that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if (visible := os.environ.get(VISIBLE)) is not None:
        return [one.strip() for one in visible.split(",") if one.strip()]
    return [str(i) for i in range(len(list(CARDS.iterdir())))] if CARDS.is_dir() else []
