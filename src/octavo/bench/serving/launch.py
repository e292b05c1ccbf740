"""A server of this package that is started for a measurement, and ended after it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from octavo.bench.serving.http import Address, ReplyError, get_json
from octavo.errors import BackendError, end_of_process

STARTS_S = 600.0
"""Seconds that a server may take to load its model."""
ENDS_S = 15.0


@contextmanager
def served(model: str, options: Sequence[str]) -> Iterator[Address]:
    """`octavo serve MODEL` with further options, on a free port of this machine, once it is ready.

    Raises BackendError with the server's last line where it ends before.
    """
    to = Address("127.0.0.1", free_port())
    command = [sys.executable, "-m", "octavo", "serve", model, "--port", str(to.port), *options]
    with running("octavo serve", command, to):
        yield to


@contextmanager
def running(name: str, command: Sequence[str], to: Address) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a server that answers /health at `to` with 200, as it does once it is ready.

    Raises BackendError where it ends before.
    """
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except OSError as error:
            raise BackendError(f"{name}: {command[0]} can't be run: {error.strerror or error}") from None
        try:
            _wait(process, to)
            yield process
        except ReplyError:
            if process.poll() is None:
                raise
            log.seek(0)
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            last = lines[-1].strip() if lines else "it said nothing"
            raise BackendError(f"{name} {end_of_process(process.returncode)}: {last}") from None
        finally:
            process.terminate()
            try:
                process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], to: Address) -> None:
    until = time.monotonic() + STARTS_S
    while True:
        try:
            asyncio.run(get_json(to, "/health"))
            return
        except ReplyError:
            if process.poll() is not None or time.monotonic() > until:
                raise
        time.sleep(0.1)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
