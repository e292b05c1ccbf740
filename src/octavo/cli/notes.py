"""What is said where a command is stopped, and what errors note beside their message: how to go on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


@contextmanager
def stop_told(rest: Callable[[], str] = lambda: "the same command goes on") -> Iterator[None]:
    """Say, where Ctrl-C or a signal ends the block, that it was stopped, and what `rest` then says."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        print(f"octavo: stopped; {rest()}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        raise


@contextmanager
def notes_told() -> Iterator[None]:
    """Print the notes of what ends the block, an error or a signal; Ctrl-C ends the command with its status."""
    try:
        yield
    except BaseException as error:
        for note in getattr(error, "__notes__", ()):
            print(f"octavo: {note}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        raise
