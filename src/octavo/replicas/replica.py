"""A replica's process: a whole server on a free port, for the front that started it.

The front's end of a socket says what to serve; the answer is where, once the model is loaded. One whose engine asks
says before that what it needs, waits for `Go`, and tells how far it is. When the front is gone, which closes the
socket, the replica ends; on SIGTERM it ends in order, as any server does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import replace
from threading import Thread

import msgspec

from octavo.errors import OctavoError, UsageError
from octavo.io.model_path import resolve
from octavo.io.system_memory import resident
from octavo.server.engine.channel import Channel
from octavo.server.engine.client import EngineDiedError
from octavo.server.engine.engine_protocol import Asks, Loading
from octavo.server.engine.launch import launch
from octavo.server.engine.process import ProcessClient
from octavo.server.generation.service import Service
from octavo.server.serve import bind, run, serve
from octavo.server.serve_options import EngineOptions, ServerOptions


class Setup(msgspec.Struct):
    """What a replica serves.

    number        of the replica
    host          it listens at; "" for the address of its Ray node
    level         how much it logs
    environment   variables beside those of the front
    called        what the log calls it; "" for its number
    """

    number: int
    engine: EngineOptions
    server: ServerOptions
    host: str = "127.0.0.1"
    level: int = logging.WARNING
    environment: dict[str, str] = {}
    called: str = ""


class Served(msgspec.Struct, tag="served", array_like=True):
    """The model is loaded: where the replica listens, the most bytes and values of a body that it takes; its pid."""

    host: str
    port: int
    body: int
    values: int
    pid: int = 0


class Refused(msgspec.Struct, tag="refused", array_like=True):
    """The model can't be loaded; `argument` is the one that is wrong, see UsageError."""

    message: str
    argument: str | None = None

    def error(self) -> OctavoError:
        """What is raised for it."""
        if self.argument is not None:
            return UsageError(self.message, argument=self.argument)
        return EngineDiedError(self.message)


SPARE = 128 << 20
"""Bytes that a replica may take beside what its engine asks for: of compiled kernels, grammars, and prompts."""
encode = msgspec.msgpack.Encoder().encode
from_replica = msgspec.msgpack.Decoder(Served | Refused | Asks | Loading).decode


def start(setup: Setup) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start one: its process, and the socket on which it answers. Raises OSError where there is no room for it."""
    ours, theirs = socket.socketpair()
    with theirs, ExitStack() as failing:
        failing.enter_context(ours)
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo.replicas.replica", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **setup.environment},
        )
        Channel(ours).send(encode(setup))
        failing.pop_all()
    return process, ours


def serve_replica(channel: Channel, setup: Setup, going: Future[None]) -> None:
    """Serve until SIGTERM comes. `going`: an engine that asks may load its model."""
    from octavo.huggingface import open_model_file

    with closing(launch(grouped=True)) as launched, closing(bind(setup.host, 0)) as sock:
        port = sock.getsockname()[1]
        options = replace(setup.server, host=setup.host, port=port, certificate=None)  # the front has it

        def told(service: Service) -> None:
            channel.send(encode(Served(setup.host, port, service.limits.body, service.limits.values, os.getpid())))

        def loading(message: Asks | Loading) -> None:
            if isinstance(message, Asks):
                loop, asked = asyncio.get_running_loop(), not going.done()
                going.add_done_callback(lambda _: loop.call_soon_threadsafe(client.go))
                if not asked:  # an engine after the first one
                    return
                message = msgspec.structs.replace(message, process=message.process + resident() + SPARE)
            channel.send(encode(message))

        with open_model_file(resolve(setup.engine.path)) as file:
            client = ProcessClient(_engine(setup), launched, grouped=True)
            client.on_load = loading
            run(serve(client, file, options, sock, told))


def _engine(setup: Setup) -> EngineOptions:
    """What the replica's engine loads: its KV events have addresses of their own, as those of vLLM's ranks."""
    events = setup.engine.kv_events
    return msgspec.structs.replace(setup.engine, kv_events=None if events is None else events.of_rank(setup.number))


def main() -> None:
    """Run with the number of a socket that this process was given."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    messages = channel.received()
    first = next(messages, None)
    if first is None:
        return
    setup = msgspec.msgpack.decode(first, type=Setup)
    called = (setup.called or f"replica {setup.number}").replace("%", "%%")
    logging.basicConfig(format=f"octavo: %(levelname)s: {called}: %(message)s", level=logging.WARNING)
    logging.getLogger("octavo").setLevel(setup.level)
    if setup.server.log_requests:
        logging.getLogger("octavo.requests").setLevel(logging.INFO)

    going: Future[None] = Future()

    def read() -> None:
        try:
            for _ in messages:  # the one that there is to be is `Go`
                going.set_result(None)
        finally:
            os._exit(0)  # its engine ends with it

    Thread(target=read, daemon=True, name="front").start()
    try:
        serve_replica(channel, setup, going)
    except (OctavoError, OSError) as error:
        channel.send(encode(Refused(str(error), getattr(error, "argument", None))))
        sys.exit(1)


if __name__ == "__main__":
    main()
