"""Stored tensors copied to a device, each byte once: threads read pieces of the file into page-locked memory, from
which the device fetches them meanwhile."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch

from octavo.backends.cores import cores
from octavo.formats import QTensor

PIECE = 4 << 20
"""Bytes that a thread reads at a time."""
THREADS = 8
PIECES = 2 * THREADS
"""Pieces of page-locked memory: half of them are read while the others are copied."""


class Staging:
    """Page-locked memory, and threads that fill it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(min(cores(), THREADS), "weights")
        memory: Any = torch.empty(PIECES * PIECE, dtype=torch.uint8, pin_memory=True)
        self._free = deque[tuple[torch.Tensor, Any]]((piece, None) for piece in memory.split(PIECE))

    def copy(self, tensor: QTensor, out: torch.Tensor) -> None:
        """Begin to copy all packed bytes of a tensor to `out`, uint8 [bytes], on the current stream."""
        waiting = deque[tuple[int, torch.Tensor, Future[None]]]()
        try:
            for start in range(0, len(out), PIECE):
                if not self._free:
                    self._send(out, *waiting.popleft())
                piece, done = self._free.popleft()
                if done is not None:
                    done.synchronize()
                part = piece[: min(PIECE, len(out) - start)]
                waiting.append((start, piece, self._pool.submit(tensor.fill, part.numpy().data, start)))
            while waiting:
                self._send(out, *waiting.popleft())
        finally:  # after an error in one of them
            for _, piece, future in waiting:
                future.exception()
                self._free.append((piece, None))

    def _send(self, out: torch.Tensor, start: int, piece: torch.Tensor, filled: Future[None]) -> None:
        done = None
        try:
            filled.result()
            to = out[start : start + PIECE]
            to.copy_(piece[: len(to)], non_blocking=True)
            done = torch.cuda.current_stream(out.device).record_event()
        finally:
            self._free.append((piece, done))


@cache
def staging() -> Staging:
    """That of this process, for one thread at a time."""
    return Staging()


def upload(tensor: QTensor, device: str) -> torch.Tensor:
    """All packed bytes of a tensor on a device: uint8 [bytes]."""
    source = tensor.in_parts()
    if torch.device(device).type == "cpu":
        return torch.from_numpy(np.require(source.data, requirements="W").reshape(-1))
    out = torch.empty(tensor.nbytes, dtype=torch.uint8, device=device)
    staging().copy(source, out)
    return out
