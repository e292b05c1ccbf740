"""Which communicator ranks on a device have, and what the process of one needs."""

from __future__ import annotations

from typing import Any

from octavo.backends.gloo import GlooCommunicator
from octavo.graph.communicator import Communicator


def has_cards(device: str, ranks: int) -> bool:
    """Whether each rank has a GPU of its own; several that share one exchange values over the host."""
    return device == "gpu" and _cards() >= ranks


def environment(device: str, rank: int, ranks: int) -> dict[str, str]:
    """Of the environment, what the process of a rank has to have."""
    if device != "gpu" or not _cards():
        return {}
    from octavo.backends.gpu.collectives.communicator import visible_to

    return visible_to(rank, _cards())


def meet(store: Any, device: str, rank: int, ranks: int) -> Communicator:
    """The communicator of a rank, once all of them are there."""
    if device != "gpu":
        return GlooCommunicator(store, rank, ranks)
    from octavo.backends.gpu.collectives.communicator import DeviceCommunicator, HostStagedCommunicator

    if has_cards(device, ranks):
        return DeviceCommunicator(store, rank, ranks)
    return HostStagedCommunicator(GlooCommunicator(store, rank, ranks))


def _cards() -> int:
    import torch

    return torch.cuda.device_count()
