"""Ranks as threads of one process, which exchange arrays through memory that they share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import numpy as np

from octavo.graph.communicator import Communicator, Reduction
from tests.limits import HANG_S

T = TypeVar("T")


class Meeting:
    """Where the threads leave what they exchange."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.left, self.barrier = ranks, dict[int, np.ndarray](), Barrier(ranks, timeout=HANG_S)


class ThreadCommunicator:
    """One rank's `Communicator`; `calls` counts its collectives, and `sent` the bytes that it gave to them."""

    failure = ""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.ranks, self._meeting = rank, meeting.ranks, meeting
        self.calls, self.sent = 0, 0

    def all_reduce(self, value: Any, reduction: Reduction) -> None:
        found = self._exchanged(value)
        value[...] = np.sum(found, axis=0, dtype=np.float32) if reduction == "sum" else np.max(found, axis=0)

    def all_gather(self, part: Any, out: Any) -> None:
        out[...] = self._exchanged(part)

    def abort(self) -> None:
        self._meeting.barrier.abort()

    def _exchanged(self, value: np.ndarray) -> np.ndarray:
        meeting = self._meeting
        self.calls, self.sent = self.calls + 1, self.sent + value.nbytes
        meeting.left[self.rank] = value.copy()
        meeting.barrier.wait()
        found = np.stack([meeting.left[r] for r in range(meeting.ranks)])
        meeting.barrier.wait()
        return found


def on_ranks(ranks: int, work: Callable[[Communicator], T]) -> list[T]:
    """What each rank's `work` gives; all run at the same time. The first error of any of them is raised."""
    meeting = Meeting(ranks)

    def run(rank: int) -> T:
        try:
            return work(ThreadCommunicator(meeting, rank))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        done = [pool.submit(run, rank) for rank in range(ranks)]
        errors = [error for each in done if (error := each.exception()) is not None]
    for error in sorted(errors, key=lambda error: type(error).__name__ == "BrokenBarrierError"):
        raise error
    return [each.result() for each in done]
