"""Waiting for what constraints find out beside the steps, which no step does for longer than it is due."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable
from typing import Protocol

from octavo.jit.clock import clock
from octavo.runtime.scheduler.constraint import Constraint

IDLE_S = 0.01
"""Seconds to wait where nothing else is to be done, before messages are looked for again."""


class _Descriptor(Protocol):
    def fileno(self) -> int: ...


def wait_for(late: Iterable[_Descriptor], seconds: float) -> None:
    """Wait until one of several may be there, or for so long."""
    descriptors = {one.fileno() for one in late} - {-1}
    if hasattr(select, "poll"):
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        poll.poll(1e3 * max(seconds, 0.0))
    elif descriptors:
        select.select(descriptors, [], [], max(seconds, 0.0))
    else:
        time.sleep(seconds)


def wait_while_due(constraints: Iterable[Constraint]) -> None:
    """Wait until constraints are not late, for each of them as long as it is due."""
    left = [late for one in constraints if (late := one.pending_mask) is not None]
    while left and (seconds := max(late.due for late in left) - clock()) > 0:
        wait_for(left, seconds)
        left = [late for one in constraints if (late := one.pending_mask) is not None and late.due > clock()]
