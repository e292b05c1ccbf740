"""A replica: a whole server on a free port, for the front that started its process, see `replica_process`.

The front's end of a socket says what to serve; the answer is where, once the model is loaded. One whose engine asks
says before that what it needs, waits for `Go`, and tells how far it is. From its setup on it answers `ALIVE`, at once.
When the front is gone, which closes the socket, the replica ends; on SIGTERM it ends in order, as any server does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace

import msgspec

from octavo.errors import OctavoError, UsageError
from octavo.huggingface import open_model_file
from octavo.io.model_path import resolve
from octavo.io.system_memory import resident
from octavo.replicas.setup import Setup, encode
from octavo.server.engine.channel import Channel
from octavo.server.engine.client import EngineDiedError
from octavo.server.engine.engine_protocol import Asks, Loading
from octavo.server.engine.launch import Launched
from octavo.server.engine.process import ProcessClient
from octavo.server.generation.service import Service
from octavo.server.serve import bind, run, serve


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
from_replica = msgspec.msgpack.Decoder(Served | Refused | Asks | Loading).decode


def serve_replica(channel: Channel, setup: Setup, launched: Launched, going: Future[None]) -> None:
    """Serve until SIGTERM comes. `going`: an engine that asks may load its model."""
    with closing(bind(setup.host, 0)) as sock:
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
            client = ProcessClient(setup.of_engine, launched, grouped=True)
            client.on_load = loading
            run(serve(client, file, options, sock, told))


def serve_front(channel: Channel, setup: Setup, launched: Launched, going: Future[None]) -> None:
    """Be the replica of a front; see `serve_replica`."""
    try:
        serve_replica(channel, setup, launched, going)
    except (OctavoError, OSError) as error:
        channel.send(encode(Refused(str(error), getattr(error, "argument", None))))
        sys.exit(1)
