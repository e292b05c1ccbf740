"""The process of a rank other than 0: it loads its part of a model, and does what rank 0 says."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from octavo.errors import OctavoError
from octavo.runtime.parallel import messages
from octavo.runtime.parallel.messages import (
    Array,
    CopyPage,
    CopyState,
    Failed,
    Here,
    Launch,
    Load,
    Plan,
    Ready,
    Row,
    RowPart,
    Run,
    Vectors,
)

log = logging.getLogger("octavo")
LOOK_S = 1.0
"""Seconds between looks for whether rank 0 is still there."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when the thread that started it ends."""


class Follower:
    """The engine of a rank, whose executors are called from outside."""

    def __init__(self, load: Load) -> None:
        from octavo.backends.gloo import find_store
        from octavo.backends.ranks import meet
        from octavo.huggingface import open_model_file
        from octavo.models import read_model
        from octavo.runtime.engine.engine import Engine, EngineConfig
        from octavo.runtime.engine.placement import backends_for
        from octavo.runtime.lora_adapters import with_adapters
        from octavo.runtime.parallel.leader import Handles, collectives_of

        communicators = meet(find_store(load.port), load.device, load.rank, load.ranks, load.stages)
        backends, _ = backends_for(
            load.device, load.threads, deterministic=load.deterministic,
            attention=load.attention, pipeline=load.stages, communicators=communicators,
        )
        model = with_adapters(read_model(open_model_file(load.path)), load.lora)
        self._engine = Engine(model, backends, EngineConfig(**load.config))
        self._executors, self._handles = [self._engine.load()], [Handles()]
        self.collectives = collectives_of(self._engine.graph)

    def do(self, message: messages.ToRank, pipe: Connection) -> None:
        """What rank 0 does; it is sent what it asks for."""
        if isinstance(message, Launch):
            executor, handles = self._executors[message.executor], self._handles[message.executor]
            fed = {name: handles.fed(source) for name, source in message.fed.items()}
            handles.keep(executor.launch(messages.unpacked(message.inputs), message.sizes, message.wanted, fed))
        elif isinstance(message, Run):
            self._executors[message.executor].run(messages.unpacked(message.inputs), message.sizes)
        elif isinstance(message, Plan):
            self._executors[message.executor].plan(message.sizes, message.wanted)
        elif isinstance(message, CopyPage):
            self._executors[0].copy_page(message.target, message.source, message.rows)
        elif isinstance(message, CopyState):
            self._executors[0].copy_state(message.target, message.source)
        elif isinstance(message, Row):
            values = self._handles[message.executor].handle(message.launch).row(message.output, message.row)
            pipe.send_bytes(messages.encode(RowPart(Array.of(values))))
        elif isinstance(message, Vectors):
            from octavo.runtime.parallel.leader import Handles
            from octavo.runtime.token_vectors import VectorSteps

            self._executors.append(VectorSteps(self._engine).executor)
            self._handles.append(Handles())


def follow(pipe: Connection) -> None:
    """Do what comes through a pipe until it is closed."""
    from octavo.backends.gloo import distributed

    follower: Follower | None = None
    while True:
        try:
            message = messages.to_rank.decode(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        if isinstance(message, Load):
            distributed()
            pipe.send_bytes(messages.encode(Here()))
            follower = Follower(message)
            pipe.send_bytes(messages.encode(Ready(follower.collectives)))
        else:
            assert follower is not None
            follower.do(message, pipe)


def _end_with(pipe: int, parent: int) -> None:
    """End this process, whatever it waits for, when rank 0's has ended or has closed the pipe."""
    poll: Any = select.poll()
    poll.register(pipe, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    while not poll.poll(LOOK_S * 1000) and os.getppid() == parent:
        pass
    os._exit(0)


def main() -> None:
    """Run with the number of a pipe, rank 0's process, and how much this one is to say."""
    number, parent, level = map(int, sys.argv[1:4])
    for name in ("SIGINT", "SIGHUP"):  # they are for rank 0, whose end is this one's
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    logging.basicConfig(format="octavo: %(levelname)s: %(message)s", level=logging.ERROR)
    log.setLevel(max(level, logging.ERROR))
    if sys.platform == "linux":  # also while it is stopped, where it can't see that the pipe is closed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    pipe = Connection(number)
    Thread(target=_end_with, args=(number, parent), name="rank 0", daemon=True).start()
    try:
        follow(pipe)
    except BaseException as error:
        log.info("%s", traceback.format_exc())
        words = str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            pipe.send_bytes(messages.encode(Failed(words)))
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
