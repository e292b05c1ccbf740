"""Kernels that are compiled while a model is downloaded: what it needs is known as soon as its header is there.

A process of a low priority reads the header from the partial file and compiles, and ends with the download. What it has
compiled by then is kept; the rest is compiled when the model is loaded, as ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
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

    def begin(self, partial: str, size: int) -> None:
        """A file of `size` bytes is being downloaded to `partial`."""
        if self._process is not None or size < LEAST or sys.platform == "win32":  # where files have no holes
            return
        command = [sys.executable, "-c", f"from {__name__} import compile_for; compile_for()", partial, str(size)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def compile_for() -> None:
    """What the process does, for the file and the size among its arguments."""
    from octavo.backends import concrete
    from octavo.errors import GGUFError

    partial, size = sys.argv[1], int(sys.argv[2])
    os.nice(NICE)
    if concrete("auto") != "cpu":
        return
    parent, wanted = os.getppid(), HEADER
    while wanted <= MOST and os.getppid() == parent:
        if os.path.getsize(partial) < min(wanted, size):
            time.sleep(POLL_S)
            continue
        with tempfile.TemporaryDirectory() as folder:
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
