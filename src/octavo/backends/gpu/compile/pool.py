"""Kernels compiled in processes of their own, where there are many of them: Triton reads their sources in Python, of
which one thread of a process runs at a time. `worker` is what such a process runs.

It is told what to compile on its standard input, leaves the compiled kernel in an entry of the folder of compiled
kernels, and says on its standard output whether that worked. Where it did not, this process compiles by itself, and
finds out why.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

from triton.compiler import ASTSource
from triton.language import constexpr
from triton.runtime.jit import JITFunction

from octavo.backends.gpu.launch.arguments import ended, marked_constant, unended, unmarked_constant

log = logging.getLogger("octavo")

MANY = 8
"""Kernels that wait while another one is compiled, from which on a process is started: it takes a third of a second."""
LENGTH = struct.Struct("<I")
DONE, FAILED = b"1", b"0"


class Apart(threading.local):
    """The process that compiles for this thread, if there is one."""

    process: subprocess.Popen[bytes] | None = None

    def during(self, prepare: Callable[[], Any], left: Callable[[], int]) -> Any:
        """What `prepare` gives, which may compile; `left` says how many others wait."""
        if self.process is None and left() >= MANY:
            self.process = _start()
        try:
            return prepare()
        finally:
            if not left():
                self.end()

    def compile(self, source: Any, target: Any, options: dict[str, Any], entry: Path) -> bool:
        """Whether a kernel was compiled into an entry."""
        if self.process is None:
            return False
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            _write(self.process.stdin, dumped((source, target, options, str(entry))))
            return self.process.stdout.read(1) == DONE
        except Exception as error:
            log.info("kernels are compiled in this process: %s", error)
            self.end()
            return False

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()  # closes its pipes, whatever is left in them


apart = Apart()


def _start() -> subprocess.Popen[bytes] | None:
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
        )
    except OSError as error:
        log.info("kernels are compiled in this process: %s", error)
        return None


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Kernels by their names, and what arguments are made of."""
        if isinstance(value, JITFunction):
            return _named, (value.fn.__module__, value.fn.__qualname__)
        if isinstance(value, ASTSource):
            return type(value), (value.fn, value.signature, value.constants, value.attrs)
        if type(value) is constexpr:
            return constexpr, (value.value,)
        if (constant := unmarked_constant(value)) is not None:
            return marked_constant, (constant,)
        if isinstance(value, type) and (record := unended(value)) is not None:
            return ended, (record,)
        return NotImplemented


def dumped(value: Any) -> bytes:
    """As bytes, for `pickle.loads` in another process."""
    out = io.BytesIO()
    _Pickler(out).dump(value)
    return out.getvalue()


def _named(module: str, name: str) -> Any:
    return attrgetter(name)(importlib.import_module(module))


def _write(stream: BinaryIO | Any, payload: bytes) -> None:
    stream.write(LENGTH.pack(len(payload)) + payload)
    stream.flush()
