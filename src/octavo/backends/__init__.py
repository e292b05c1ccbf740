"""Backends: where a graph runs. `select` turns a device's name into the backends to use, in order of preference."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast, get_args

from octavo.backends.cores import threads_of
from octavo.errors import UsageError
from octavo.graph.communicator import Communicator
from octavo.graph.node import Attention, Device
from octavo.graph.protocol import Backend

log = logging.getLogger("octavo")


def select(
    device: str, threads: int | None = None, *, deterministic: bool = False, attention: Attention = "exact",
    stages: int = 1, communicators: Sequence[Communicator] = (),
) -> list[Backend]:
    """The backends for `device` ("auto", "cpu", "gpu" or "reference").

    "auto" is the GPU where there is one that kernels run on, with torch and Triton, else the CPU. `threads` is how many
    threads to use (default: as many as this process may use cores); `deterministic` is GpuBackend's, and CpuBackend's
    where it has matrix tiles, and others are so in any case; `attention` is GpuBackend's, and exact on others. The
    first `stages` backends are alike, GPUs with a card each; `communicators` are theirs, of one of several ranks.
    Raises BackendError for a device that this machine does not have, saying what is missing, and UsageError for
    attention it lacks and for more stages than cards.
    """
    device = one_name(device)
    if threads is not None:
        threads = threads_of(threads)
    of_each: Sequence[Communicator | None] = communicators or [None] * stages
    if concrete(device) == "gpu":
        from octavo.backends.cpu import CpuBackend
        from octavo.backends.gpu import GpuBackend
        from octavo.backends.reference import ReferenceBackend

        cards = _cards(stages, communicators[0].ranks if communicators else 1)
        gpus = [GpuBackend(deterministic, attention, *each) for each in zip(of_each, cards, strict=True)]
        return [*gpus, CpuBackend(threads=threads, later=True, exact=deterministic), ReferenceBackend()]
    if attention != "exact":
        problem = (
            f"attention is {attention} on device {'cpu' if device == 'auto' else device} (allowed: exact, or a GPU)"
        )
        raise UsageError(problem, argument="attention")
    from octavo.backends.reference import ReferenceBackend

    if device == "reference":
        return [ReferenceBackend(threads=threads, communicator=each) for each in of_each]
    from octavo.backends.cpu import CpuBackend

    cpus = [CpuBackend(threads=threads, communicator=each, exact=deterministic) for each in of_each]
    return [*cpus, ReferenceBackend(communicator=of_each[0])]


def _cards(stages: int, ranks: int) -> list[int | None]:
    """The number of each stage's card among those that this process sees; None for the first, if it has but one.

    The cards of all ranks for one stage are neighbours, of which each rank sees its own first. Ranks share cards where
    there are too few. Raises UsageError for more stages than cards.
    """
    if stages == 1:
        return [None]
    from octavo.backends.gpu.device.torch_device import count_cards

    count = count_cards()
    if ranks == 1 and stages > count:
        problem = f"pipeline is {stages}, but there {'is 1 GPU' if count == 1 else f'are {count} GPUs'}"
        raise UsageError(f"{problem} (allowed: 1 to {count})", argument="pipeline")
    return [stage * ranks % count for stage in range(stages)]


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
