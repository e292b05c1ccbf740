"""What errors note beside their message: how to go on with a run that was stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


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
