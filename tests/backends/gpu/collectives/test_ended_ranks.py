"""What waits for a rank that has ended: rank 0 itself, and kernels that were launched before."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.backends.gpu.backend import GpuBackend
from octavo.backends.gpu.collectives import communicator
from octavo.backends.gpu.collectives.communicator import DeviceCommunicator
from octavo.errors import RankError


class Device:
    """A card in whose stream, in order, kernels of sums wait for words, and one of NCCL's for the end of the group."""

    def __init__(self, *kernels: str) -> None:
        self.kernels = list(kernels)
        self.ended = Event()

    def give_words(self) -> None:
        self.advance("sum")

    def end_group(self) -> None:
        self.ended.set()
        while self.kernels:  # memory is freed when the device has nothing to do any more
            pass

    def advance(self, kind: str) -> None:
        ends = {kind, "nccl"} if self.ended.is_set() else {kind}
        if self.kernels and self.kernels[0] in ends:
            self.kernels.pop(0)

    def query(self) -> bool:
        return not self.kernels


@pytest.mark.parametrize("kernels", [(), ("sum",) * 3, ("sum", "nccl"), ("sum", "nccl", "sum", "sum", "nccl", "sum")])
def test_all_that_was_launched_ends(kernels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also sums of a step that was launched ahead, which wait behind a collective of NCCL's."""
    monkeypatch.setattr(communicator, "ROUNDS", 8)
    device = Device(*kernels)
    cuda = SimpleNamespace(default_stream=lambda _: device)
    of: Any = SimpleNamespace(
        _inboxes=(1, 2), _device=None, _torch=SimpleNamespace(cuda=cuda), _give_words=device.give_words,
        _end_group=device.end_group,
    )
    DeviceCommunicator._end(of)
    assert device.query()
    assert device.ended.is_set()


def test_a_wait_for_the_device_ends_with_a_rank() -> None:
    """Its kernels may never end."""
    asked = list[str]()

    class Never:
        def record(self, stream: object) -> None:
            pass

        def query(self) -> bool:
            asked.append("query")
            ranks.failure = "rank 1 of 2 was killed by SIGKILL" if len(asked) == 3 else ""
            return False

    ranks = SimpleNamespace(failure="")
    cuda = SimpleNamespace(Event=Never, current_stream=lambda device: None)
    backend: Any = SimpleNamespace(
        target=SimpleNamespace(kind="cuda"), communicator=ranks, _torch=SimpleNamespace(cuda=cuda)
    )
    with pytest.raises(RankError, match=r"^rank 1 of 2 was killed by SIGKILL$"):
        GpuBackend._copied(backend, None)()  # type: ignore[arg-type]
    assert len(asked) == 3
