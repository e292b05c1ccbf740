"""Limits on what a test's code may take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

HANG_S = 900.0  # what has not arrived by then never will, also where 20 processes want two cores


@contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Fails what keeps this thread's processor busy for longer: waiting for a core on a busy machine does not count."""
    start = time.thread_time()
    yield
    assert time.thread_time() - start < seconds
