"""A progress bar with the time left, on a terminal only."""

from __future__ import annotations

import sys
from typing import Any, Self


class Meter:
    """A line on stderr, gone at the end: what goes on, how far it is, what is known so far, and the time left."""

    def __init__(self, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        console = Console(file=sys.stderr)
        self._progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True,
                                  disable=not sys.stderr.isatty())  # fmt: skip
        self._task = self._progress.add_task(what, total=None, note="")

    def show(self, done: int, total: int, note: str = "") -> None:
        self._progress.update(self._task, completed=done, total=total, note=note)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._progress.stop()
