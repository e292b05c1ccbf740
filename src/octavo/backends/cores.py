"""How many threads to use."""

from __future__ import annotations

import os
import sys
from numbers import Integral

from octavo.errors import UsageError
from octavo.io.macos import sysctl


def cores() -> int:
    """Cores that this process may use; on a Mac those for performance: a step waits for its slowest thread."""
    if sys.platform == "darwin" and (found := sysctl("hw.perflevel0.physicalcpu")):
        return found
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of(threads: int | None) -> int:
    """`threads`, or one for each core. Raises UsageError for fewer than 1 and more than 1024."""
    if threads is None:
        return cores()
    if not isinstance(threads, Integral) or isinstance(threads, bool) or not 1 <= threads <= 1024:
        raise UsageError(f"threads is {threads!r} (allowed: 1 to 1024)", argument="threads")
    return int(threads)
