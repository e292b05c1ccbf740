"""Stored tensors copied to a device, each byte once: threads read pieces of the file into page-locked memory, from
which the device fetches them meanwhile."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any

import torch

from octavo.backends.cores import cores
from octavo.formats import QTensor

PIECE = 4 << 20
"""Bytes that a thread reads at a time, at most."""
THREADS = 8
PIECES = 2 * THREADS
"""Pieces of page-locked memory: half of them are read while the others are copied."""


class Staging:
    """Page-locked memory, and threads that fill it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(min(cores(), THREADS), "weights")
        memory: Any = torch.empty(PIECES * PIECE, dtype=torch.uint8, pin_memory=True)
        self._free = deque[tuple[torch.Tensor, Any]]((piece, None) for piece in memory.split(PIECE))

    def copy(self, tensor: QTensor, rows: slice, out: torch.Tensor) -> None:
        """Begin to copy rows of a tensor to `out`, uint8 [rows, bytes], on the current stream."""
        waiting = deque[tuple[torch.Tensor, torch.Tensor, Future[None]]]()
        step = PIECE // out.shape[1]
        with self._lock:
            try:
                for start in range(0, len(out), step):
                    if not self._free:
                        self._send(*waiting.popleft())
                    piece, done = self._free.popleft()
                    if done is not None:
                        done.synchronize()
                    to = out[start : start + step]
                    part = slice(rows.start + start, rows.start + start + len(to))
                    filled = self._pool.submit(tensor.fill, piece[: to.numel()].numpy().data, part)
                    waiting.append((to, piece, filled))
                while waiting:
                    self._send(*waiting.popleft())
            finally:  # after an error in one of them
                for _, piece, filled in waiting:
                    filled.exception()
                    self._free.append((piece, None))

    def _send(self, to: torch.Tensor, piece: torch.Tensor, filled: Future[None]) -> None:
        done = None
        try:
            filled.result()
            to.view(-1).copy_(piece[: to.numel()], non_blocking=True)
            done = torch.cuda.current_stream(to.device).record_event()
        finally:
            self._free.append((piece, done))


@cache
def staging() -> Staging:
    """That of this process."""
    return Staging()


def upload(tensor: QTensor, device: str, rows: slice) -> torch.Tensor:
    """Rows of a tensor, parts of which are read without the rest, on a device: uint8 [rows, bytes]."""
    row = tensor.format.row_bytes(tensor.shape[-1])
    out = torch.empty((rows.stop - rows.start, row), dtype=torch.uint8, device=device)
    if out.device.type == "cuda" and row <= PIECE:
        staging().copy(tensor, rows, out)
        return out
    on_host = torch.empty(out.shape, dtype=torch.uint8)
    tensor.fill(on_host.view(-1).numpy().data, rows)
    return on_host.to(device)
