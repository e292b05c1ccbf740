"""What is put right in a forked process."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Has something to put right in a process that was forked: of the threads only the one that forked goes on."""

    def forked(self) -> None: ...


_forked: WeakSet[Forked] = WeakSet()


def tell_when_forked(it: Forked) -> None:
    """Call `it.forked()` in each process that is forked from this one, as long as `it` lives."""
    _forked.add(it)


def _tell() -> None:
    for it in list(_forked):
        it.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)
