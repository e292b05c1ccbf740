"""Standard output, whose own failures are told apart from those of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any


class OutputError(Exception):
    """What the system says of standard output that can't be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.left = isinstance(error, BrokenPipeError)
        """Who reads has left."""


class _Output:
    """A stream whose failures are OutputError."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _failures():
            return int(self._stream.write(text))

    def flush(self) -> None:
        with _failures():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(error) from None


@contextmanager
def output_told_apart() -> Iterator[None]:
    """What can't be written to standard output in the block, or is left to write at its end, raises OutputError."""
    if sys.stdout is None:
        yield
        return
    output: Any = _Output(sys.stdout)
    with redirect_stdout(output):
        try:
            yield
        finally:
            output.flush()


def open_closed_streams() -> None:
    """Standard streams that a shell has closed (`>&-`) are empty, or go nowhere.

    They are files from then on, as the next file that is opened would else be the one that libraries write to.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != fd:
                os.dup2(nowhere, fd)
                os.close(nowhere)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def drop_output() -> None:
    """What is still to be written to standard output goes nowhere: else Python tells of it at the process's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
