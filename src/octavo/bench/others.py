"""How much of the CPU other programs took while something was timed: beyond a few percent, timings and ratios mislead.

A program whose threads wait for each other at every step loses far more than its share on a machine that is busy, so
a ratio measured there says little. Known on Linux only, from /proc.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

BUSY = 0.05
"""Share of the CPU that others may take before a result says so."""
OVER = 1.005
"""More of a limit than this was not reached: the limit was measured while others had the machine."""

STEAL = 7
"""Place in /proc/stat of the time that a hypervisor gave to others."""
IDLE = (3, 4)
"""Places of idle time and of waiting for input and output."""


def misleading(others: float | None, share: float | None) -> str | None:
    """Why no ratio is given: others had more than `BUSY` of the CPU, or more than the limit was reached; else None."""
    if (others or 0.0) > BUSY:
        return f"other programs took up to {others:.0%} of the CPU"
    if (share or 0.0) > OVER:
        return f"{share:.0%} of the limit was reached, so that others had the machine while the limit was measured"
    return None


class LoadWatch:
    """Measures from its making until `others` is asked. `pids`: the processes that are timed."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._start = self._now()

    def others(self) -> float | None:
        """The share of all cores' time, from 0 to 1, that others took (also other virtual machines), or None."""
        before, after = self._start, self._now()
        if before is None or after is None:
            return None
        wall, busy, own = (b - a for a, b in zip(before, after, strict=True))
        return min(1.0, max(0.0, (busy - own) / (wall * (os.cpu_count() or 1))))

    def _now(self) -> tuple[float, float, float] | None:
        """Seconds: by the clock, of all cores' work, of our processes' work."""
        try:
            tick = os.sysconf("SC_CLK_TCK")
            fields = [int(f) for f in _words("/proc/stat")[1 : STEAL + 2]]
            busy = sum(fields) - sum(fields[i] for i in IDLE)
            own = sum(sum(int(f) for f in _after_name(pid)[11:13]) for pid in self._pids)
        except (OSError, ValueError, AttributeError):
            return None
        return time.perf_counter(), busy / tick, own / tick


def _words(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="replace").split()


def _after_name(pid: int) -> list[str]:
    """The words of /proc/PID/stat after the program's name (it may hold anything); the 12th and 13th are its times."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
