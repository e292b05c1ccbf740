"""How far something is that takes long, for whoever is at the terminal: loading a model, compiling kernels."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Show = Callable[[str, int, int], None]
"""What goes on, how much of it is done, and of how much."""
BAR = 24
AFTER_S, EACH_S = 0.4, 0.1
"""Seconds after which a line is drawn for the first time, and then again."""


class Line:
    """A line on standard error, a bar and what goes on; it is written by `show`, and taken away by `clear`."""

    def __init__(self) -> None:
        self._drawn, self._next = False, time.monotonic() + AFTER_S

    def show(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next, self._drawn = now + EACH_S, True
        full = BAR * done // max(total, 1)
        text = f"{'#' * full}{'.' * (BAR - full)} {done / max(total, 1):4.0%}  {what}"
        self._write(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K")

    def clear(self) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # of a terminal that is closed: no reason to end
            sys.stderr.write(text)
            sys.stderr.flush()


class _Shown:
    show: Show | None = None


@contextmanager
def shown(show: Show) -> Iterator[None]:
    """Within the block `show` is told how far it is."""
    before, _Shown.show = _Shown.show, show
    try:
        yield
    finally:
        _Shown.show = before


@contextmanager
def on_terminal() -> Iterator[None]:
    """Within the block a line says how far it is, where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    line = Line()
    try:
        with shown(line.show):
            yield
    finally:
        line.clear()


@contextmanager
def in_log() -> Iterator[None]:
    """As `on_terminal`; where standard error is none, a line names each thing that is under way after AFTER_S, once."""
    if sys.stderr.isatty():
        with on_terminal():
            yield
        return
    begun, said = time.monotonic(), set[str]()

    def show(what: str, done: int, total: int) -> None:
        if (kind := what.partition(":")[0]) not in said and time.monotonic() > begun + AFTER_S:
            said.add(kind)
            with suppress(OSError, ValueError):
                print(f"octavo: {kind}", file=sys.stderr, flush=True)

    with shown(show):
        yield


def tell(what: str, done: int, total: int) -> bool:
    """Tell whoever wants to see it; False where nobody does."""
    if _Shown.show is None:
        return False
    _Shown.show(what, done, total)
    return True
