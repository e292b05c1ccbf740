"""Communicator: what ranks exchange values with, in the memory of a backend."""

from __future__ import annotations

from typing import Any, Literal, Protocol

Reduction = Literal["sum", "max"]


class Communicator(Protocol):
    """One of some ranks that make the same calls in the same order, with values of a backend's own kind.

    A call returns when its result is there, or, on a device, when it is on its way there as a kernel's would be.
    """

    rank: int
    ranks: int

    @property
    def failure(self) -> str:
        """Why the ranks can't go on; empty while they can, or where only rank 0 knows."""

    def all_reduce(self, value: Any, reduction: Reduction) -> None:
        """Put the sum, or the largest, of the ranks' float32 values, which have one shape, in the place of each."""

    def all_gather(self, part: Any, out: Any) -> None:
        """Put each rank's `part`, which have one shape and type, into `out` [ranks, *shape]."""

    def abort(self) -> None:
        """From another thread: let go of what waits for a rank that has ended, if nothing else does."""
