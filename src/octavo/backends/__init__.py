"""Backends: where a graph runs. `select` turns a device's name into the backends to use, in order of preference."""

from __future__ import annotations

import logging
from typing import cast, get_args

from octavo.backends.cores import threads_of
from octavo.errors import UsageError
from octavo.graph.communicator import Communicator
from octavo.graph.node import Attention, Device
from octavo.graph.protocol import Backend

log = logging.getLogger("octavo")


def select(
    device: str, threads: int | None = None, *, deterministic: bool = False, attention: Attention = "exact",
    communicator: Communicator | None = None,
) -> list[Backend]:
    """The backends for `device` ("auto", "cpu", "gpu" or "reference").

    "auto" is the GPU where there is one that kernels run on, with torch and Triton, else the CPU. `threads` is how many
    threads to use (default: as many as this process may use cores); `deterministic` is GpuBackend's, which others are
    in any case, and so is `attention`, which is exact on others; `communicator` is that of one of several ranks. Raises
    BackendError for a device that this machine does not have, saying what is missing, and UsageError for attention it
    lacks.
    """
    device = one_name(device)
    if threads is not None:
        threads = threads_of(threads)
    if concrete(device) == "gpu":
        from octavo.backends.cpu import CpuBackend
        from octavo.backends.gpu import GpuBackend
        from octavo.backends.reference import ReferenceBackend

        gpu = GpuBackend(deterministic, attention, communicator)
        return [gpu, CpuBackend(threads=threads, later=True), ReferenceBackend()]
    if attention != "exact":
        problem = (
            f"attention is {attention} on device {'cpu' if device == 'auto' else device} (allowed: exact, or a GPU)"
        )
        raise UsageError(problem, argument="attention")
    from octavo.backends.reference import ReferenceBackend

    if device == "reference":
        return [ReferenceBackend(threads=threads, communicator=communicator)]
    from octavo.backends.cpu import CpuBackend

    return [CpuBackend(threads=threads, communicator=communicator), ReferenceBackend(communicator=communicator)]


def concrete(device: str) -> Device:
    """What `device` is here: not "auto"."""
    name = one_name(device)
    return name if name != "auto" else "gpu" if _gpu_usable() else "cpu"


def one_name(device: str) -> Device:
    """What a device is called here: "gpu" for torch's "cuda" too. Raises UsageError for one that is not known."""
    name = "gpu" if device in ("cuda", "rocm", "hip") else device
    if name not in get_args(Device):
        problem = f"device is {device!r} (allowed: {', '.join(get_args(Device))})"
        raise UsageError(problem, argument="device")
    return cast(Device, name)


def _gpu_usable() -> bool:
    from octavo.backends.gpu.device.torch_device import unusable

    reason = unusable()
    if reason is not None:
        log.info("device auto: the CPU (%s)", reason)
    return reason is None
