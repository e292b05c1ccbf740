"""Signals that end a program."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_S = 5.0


@contextmanager
def ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit within the block, with the status 128 + the signal's number.

    So temporary files are removed, as after Ctrl-C. More of them within `GRACE_S` seconds, as a closed terminal sends,
    don't disturb that. A signal that is ignored, as under nohup, stays so; outside the main thread nothing changes.
    """
    raised = float("-inf")

    def end(number: int, frame: object) -> None:
        nonlocal raised
        now = time.monotonic()
        if now - raised > GRACE_S:
            raised = now
            raise SystemExit(128 + number)

    ours = []
    if threading.current_thread() is threading.main_thread():
        ending = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        ours = [number for number in ending if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
