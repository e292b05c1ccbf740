"""When calls become a graph: at once where nothing is left to compile, and after they ran one by one elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.backends.gpu.device.torch_device import INTERPRETER
from octavo.backends.gpu.launch import call
from octavo.backends.gpu.launch.call import Captured, Launch


class Kernel:
    arg_names = ("x",)

    def __init__(self, ran: list[str]) -> None:
        self._ran = ran

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **options: self._ran.append("kernel")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What runs, and what is captured."""
    found = list[str]()

    def capture(self: Captured) -> Any:
        found.append("capture")
        return SimpleNamespace(replay=lambda: found.append("replay"))

    monkeypatch.setattr(Captured, "_capture", capture)
    return found


def captured(ran: list[str], monkeypatch: pytest.MonkeyPatch, *, made: bool, others: bool) -> Captured:
    launch = Launch(INTERPRETER, Kernel(ran), (1,), 3)

    class Making:
        is_done = True

        def __init__(self, launches: Any) -> None:
            assert launches == [launch]

        def finish(self) -> None:
            if made:
                launch.use(Kernel(ran))

    monkeypatch.setattr(call, "PendingKernels", Making)
    return Captured([launch, lambda: ran.append("other")] if others else [launch])


def test_launches_of_kernels_that_are_there_are_captured_at_once(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = captured(ran, monkeypatch, made=True, others=False)
    assert not calls.is_captured()
    calls()
    assert calls.is_captured()
    calls()
    assert ran == ["capture", "replay", "replay"]


@pytest.mark.parametrize(("made", "others"), [(False, False), (True, True)])
def test_what_may_compile_runs_one_by_one_first(
    made: bool, others: bool, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = captured(ran, monkeypatch, made=made, others=others)
    calls()
    assert not calls.is_captured()
    calls()
    calls()
    assert ran == [*["kernel", "other"][: 1 + others], "capture", "replay", "replay"]


def test_kernels_are_compiled_for_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a launch with addresses in their place is the one that is asked."""
    asked = list[Any]()
    kernel: Any = Kernel([])
    kernel.warmup = lambda *arguments, grid, **options: asked.append(arguments) or SimpleNamespace(run=None)
    launch = Launch(INTERPRETER, kernel, (1,), (1.5, 2))
    moved = launch.moved(((1.5, 7 << 32),), list)
    assert moved.compiled_for is launch.compiled_for
    assert moved.arguments != launch.arguments
    moved.prepare()
    assert asked == [launch.arguments]
