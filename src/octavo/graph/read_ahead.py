"""Tensors of checkpoints, which are converted when they are read, converted by threads before they are asked for."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from octavo.formats import PlacedQTensor, QTensor
from octavo.formats.qtensor import TimesQTensor

THREADS, WINDOW = 8, 10
"""Tensors that are read at a time, and those that are read or wait to be taken."""


def read(tensor: QTensor) -> QTensor:
    """A tensor as some of it is read best: in its file, or converted in memory."""
    return tensor if isinstance(tensor, TimesQTensor | PlacedQTensor) else tensor.in_parts()


class ReadAhead:
    """Reads tensors, each of which is taken in this order, or not at all if others after it are."""

    def __init__(self, tensors: Iterable[QTensor]) -> None:
        self._left = deque(tensors)
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS), "read-ahead")
        self._read = deque[tuple[QTensor, Future[QTensor]]]()
        self._fill()

    def _fill(self) -> None:
        while self._left and len(self._read) < WINDOW:
            tensor = self._left.popleft()
            self._read.append((tensor, self._pool.submit(read, tensor)))

    def take(self, tensor: QTensor) -> QTensor:
        """A tensor as `read` gives it. Raises what reading it does."""
        while self._read:
            found, future = self._read.popleft()
            self._fill()
            if found is tensor:
                return future.result()
        return read(tensor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
