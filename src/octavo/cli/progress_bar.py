"""How far a command is, on a line of the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Self

from octavo.cli.plain import printable

if TYPE_CHECKING:
    from rich.progress import Progress

INTERVAL_S = 0.1
LINE_S = 30.0
"""Seconds between lines where stderr is not a terminal; a command that takes less writes none."""


class Bar:
    """A line on stderr, gone at the end: a bar, the time left, and what goes on.

    Where stderr is not a terminal, what goes on is a line of its own, at most each LINE_S seconds.
    All is written by `show` and by nothing else, so that no thread runs beside what is measured.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._shown = ("", 0.0)  # what was drawn, and when
        self._told = monotonic()  # when the last line was written, or the command began

    def show(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Say what goes on, and how much of it is done, where that is known."""
        text, now = printable(what), monotonic()
        if self._progress is None:
            if not sys.stderr.isatty():
                if now - self._told >= LINE_S:
                    self._told = now
                    _tell(text, done, total)
                return
            self._progress = _started()
        draw = text != self._shown[0] or now - self._shown[1] > INTERVAL_S
        if draw:
            self._shown = text, now
        task = self._progress.task_ids[0]
        self._progress.update(task, completed=done, total=total, description=text, refresh=draw)

    def tell(self, what: str) -> None:
        """Say what is done, on a line that stays."""
        self.clear()
        _tell(printable(what), 0, None)

    def clear(self) -> None:
        """Take the line away; the next `show` draws it again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.clear()


def _tell(text: str, done: int, total: int | None) -> None:
    """A line on stderr. Where nobody reads it any more, the command goes on."""
    share = f" ({done / total:.0%})" if total else ""
    with suppress(OSError):
        print(f"octavo: {text}{share}", file=sys.stderr, flush=True)


def _started() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False)
    progress = Progress(*columns, console=Console(file=sys.stderr), transient=True, auto_refresh=False)
    progress.add_task("", total=None)
    progress.start()
    return progress
