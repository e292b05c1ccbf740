"""Communicator of ranks on one machine whose values are NumPy arrays: torch.distributed's gloo, over TCP."""

from __future__ import annotations

import ctypes
import os
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from octavo.errors import BackendError, import_failure
from octavo.graph.communicator import Reduction

HOST = "127.0.0.1"
INSTALL = "CPU-only torch is enough: pip install torch --index-url https://download.pytorch.org/whl/cpu"
MEETING_S = 60.0
"""Seconds in which ranks that are there have to find each other."""
STEP_S = 7 * 24 * 3600.0
"""And for a collective: others may take long with their part of a step, and if one of them ends its group sees it."""


def distributed() -> Any:
    """torch.distributed. Raises BackendError where there is none."""
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise BackendError(f"tensor parallelism needs torch: {import_failure('torch', error, INSTALL)}") from None
    if not dist.is_available() or not dist.is_gloo_available():
        raise BackendError("tensor parallelism needs gloo, which this build of torch lacks")
    return dist


def open_store() -> Any:
    """Where ranks find each other, kept by rank 0; its `port` is what the others need."""
    dist = distributed()
    return dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=MEETING_S))


def find_store(port: int) -> Any:
    """The store of rank 0."""
    return distributed().TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=MEETING_S))


class GlooCommunicator:
    """One of several ranks, which meet at a store. Raises RuntimeError where another one ends."""

    failure = ""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        import torch

        dist = distributed()
        self.rank, self.ranks, self._tensor = rank, ranks, torch.from_numpy
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=HOST)]
        options._timeout = timedelta(seconds=MEETING_S)
        self._group = dist.ProcessGroupGloo(store, rank, ranks, options)
        self._group._set_default_timeout(timedelta(seconds=STEP_S))
        self._reductions = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
        _communicators.add(self)

    def all_reduce(self, value: Any, reduction: Reduction) -> None:
        if value.size:
            self._group.allreduce([self._tensor(value)], self._reductions[reduction]).wait()

    def all_gather(self, part: Any, out: Any) -> None:
        if part.size:
            self._group.allgather([[self._tensor(one) for one in out]], [self._tensor(part)]).wait()

    def abort(self) -> None:
        """Nothing: what waits for a rank that has ended sees its connection close."""


_communicators = WeakSet[GlooCommunicator]()


def _keep_all() -> None:
    """See that gloo's objects are never torn down in a forked process, which does not have their threads."""
    for one in list(_communicators):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one._group))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_all)
