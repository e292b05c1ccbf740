"""StepLimit: how long rank 0 may wait for the others, one of which may be stopped or stuck."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from time import monotonic

LOOK_S = 1.0
"""Seconds between looks for whether a step ends."""


class StepLimit:
    """How long the oldest of the calls that wait for other ranks takes: at most `seconds`; 0: no limit.

    Time is counted by looks, so that a process that was stopped itself does not blame the others.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds or float("inf")
        self._calls = dict[int, object]()
        self._oldest: object = None
        self._spent, self._looked = 0.0, monotonic()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What is done inside, by this thread, is such a call."""
        me, call = get_ident(), object()
        ours = self._calls.setdefault(me, call) is call
        try:
            yield
        finally:
            if ours:
                del self._calls[me]

    def exceeded(self) -> bool:
        """Look, each `LOOK_S` seconds."""
        now, oldest = monotonic(), next(iter(list(self._calls.values())), None)
        goes_on = oldest is not None and oldest is self._oldest
        self._spent = self._spent + min(now - self._looked, LOOK_S) if goes_on else 0.0
        self._oldest, self._looked = oldest, now
        return self._spent > self.seconds


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, or by a debugger. Linux alone tells."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False
