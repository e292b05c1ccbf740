"""Which communicator ranks on a device have, and what the process of one needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.backends.gloo import GlooCommunicator
from octavo.graph.communicator import Communicator


def has_cards(device: str, wanted: int) -> bool:
    """Whether there are that many GPUs, one for each stage of each rank; ranks that share one exchange values over the
    host."""
    return device == "gpu" and _cards() >= wanted


def environment(device: str, rank: int, ranks: int) -> dict[str, str]:
    """Of the environment, what the process of a rank has to have."""
    if device != "gpu" or not _cards():
        return {}
    from octavo.backends.gpu.collectives.communicator import visible_to

    return visible_to(rank, _cards())


def meet(store: Any, device: str, rank: int, ranks: int, stages: int) -> Sequence[Communicator]:
    """The communicators of a rank, one for each stage, once all ranks are there."""
    if device == "gpu" and has_cards(device, ranks * stages):
        from octavo.backends.gpu.collectives.communicator import communicators

        return communicators(store, rank, ranks, stages)
    of_host: Communicator = GlooCommunicator(store, rank, ranks)
    if device == "gpu":
        from octavo.backends.gpu.collectives.communicator import HostStagedCommunicator

        of_host = HostStagedCommunicator(of_host)
    return [of_host] * stages


def _cards() -> int:
    import torch

    return torch.cuda.device_count()
