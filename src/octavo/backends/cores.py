"""How many threads to use."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from numbers import Integral
from pathlib import Path

from octavo.errors import UsageError
from octavo.io.control_groups import control_groups
from octavo.io.cpu_topology import physical_cores, processors
from octavo.io.macos import sysctl


def cores() -> int:
    """Cores that this process may use: those it may run on, and no more than its control groups' time is of.

    Two logical processors of a core count once: its arithmetic and its way to memory are the same. On a Mac those for
    performance: a step waits for its slowest thread.
    """
    if sys.platform == "darwin" and (found := sysctl("hw.perflevel0.physicalcpu")):
        return found
    return min(physical_cores(processors()), quota())


@cache
def quota(root: Path = Path("/")) -> int:
    """Whole cores that the control groups of this process, of either version, have the time of; more than any machine
    has where none is limited. More threads than that would all wait at once when the time is used up."""
    return max(1, math.ceil(min(_quotas(root), default=1 << 20)))


def _quotas(root: Path) -> Iterator[float]:
    """The cores of each control group that limits them."""
    for folder, is_second in control_groups("cpu", root):
        names = ("cpu.max",) if is_second else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        with suppress(OSError, ValueError):  # "max", or not seen from here
            time, period = map(int, " ".join((folder / name).read_text() for name in names).split())
            if time > 0:  # -1: no limit
                yield time / period


def threads_of(threads: int | None) -> int:
    """`threads`, or one for each core. Raises UsageError for fewer than 1 and more than 1024."""
    if threads is None:
        return cores()
    if not isinstance(threads, Integral) or isinstance(threads, bool) or not 1 <= threads <= 1024:
        raise UsageError(f"threads is {threads!r} (allowed: 1 to 1024)", argument="threads")
    return int(threads)
