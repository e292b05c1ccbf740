"""Kernels that are compiled while a model is downloaded: what it needs is known as soon as its header is there.

A process of a low priority reads the header from the partial file and compiles, and ends with the download, as those do
that help it. What they have compiled by then is kept; the rest is compiled when the model is loaded, as ever.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from threading import Thread
from typing import Self

LEAST = 32 << 20
"""Bytes of a file that takes long enough."""
HEADER, MOST = 4 << 20, 64 << 20
"""Bytes after which a header is looked for first, and last."""
NICE, POLL_S = 10, 0.1


class EarlyKernels:
    """Compiles for the first GGUF file of which it is told, until its block ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""

    def begin(self, partial: str, size: int) -> None:
        """A file of `size` bytes is being downloaded to `partial`."""
        if self._process is not None or size < LEAST or sys.platform == "win32":  # where files have no holes
            return
        program = f"from {__name__} import ended_with_its_parent, compile_for; ended_with_its_parent(); compile_for()"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        nothing = subprocess.DEVNULL
        with suppress(OSError):  # no room in the temporary folder, or for a process
            self._folder = tempfile.mkdtemp(prefix="octavo-")
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, partial, str(size), self._folder], stdin=subprocess.PIPE,
                stdout=nothing, stderr=nothing, env=environment, start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def ended_with_its_parent() -> None:
    """End this process, those that help it and its folder once the parent has gone without doing so."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        shutil.rmtree(sys.argv[3], ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    Thread(target=wait, daemon=True).start()


def compile_for() -> None:
    """What the process does, for the file, the size and the folder among its arguments."""
    from octavo.backends import concrete
    from octavo.errors import GGUFError

    partial, size, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.nice(NICE)
    if concrete("auto") != "cpu":
        return
    wanted = HEADER
    while wanted <= MOST:
        if os.path.getsize(partial) < min(wanted, size):
            time.sleep(POLL_S)
            continue
        try:
            _compile(_header(partial, wanted, size, folder))
            return
        except GGUFError:
            wanted *= 2


def _header(partial: str, nbytes: int, size: int, folder: str) -> str:
    """A file of `size` bytes, the first of which are those of `partial`; the others are a hole."""
    path = os.path.join(folder, "header.gguf")
    with open(partial, "rb") as source, open(path, "wb") as file:
        file.write(source.read(nbytes))
        file.truncate(size)
    return path


def _compile(path: str) -> None:
    from octavo.io.gguf import GGUFFile
    from octavo.models import read_model
    from octavo.runtime.engine.engine import Engine, EngineConfig
    from octavo.runtime.engine.kernels_ahead import compile_ahead
    from octavo.runtime.engine.placement import backends_for

    backends, layers = backends_for("cpu")
    with GGUFFile.open(path) as file:
        engine = Engine(read_model(file), backends, EngineConfig(gpu_layers=layers))
        compile_ahead(engine.schedule, backends, engine.limits)
