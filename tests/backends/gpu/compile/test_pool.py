"""Kernels are made once each, beside other work, and those that somebody waits for before the others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from octavo.backends.gpu.compile.warm_up import KernelMaker


class Kernel:
    """What is made for a kind: takes as long as `gate` is closed, and fails if it is to."""

    def __init__(self, name: str, log: list[str], gate: Event | None = None, fails: int = 0) -> None:
        self.kernel, self.name, self.log, self.gate, self.fails = self, name, log, gate, fails

    @property
    def compiled_for(self) -> tuple[Any, ...]:
        return (self.name,)

    def prepare(self) -> Any:
        if self.gate is not None:
            self.gate.wait()
        self.log.append(self.name)
        self.fails -= 1
        if self.fails >= 0:
            raise ValueError(self.name)
        return self.name.upper()

    def use(self, made: Any) -> None:
        pass


def of(*kernels: Kernel) -> dict[tuple[Any, ...], Any]:
    return {k.compiled_for: k for k in kernels}


def test_each_is_made_once() -> None:
    log, todo = list[str](), list[Callable[[], None]]()
    maker = KernelMaker(todo.append)
    a, b, c = (Kernel(name, log) for name in "abc")
    assert maker.ask(of(a, b)) == 2
    assert maker.ask(of(b, c)) == 1
    assert not log
    assert not maker.is_made(("a",))
    while todo:
        todo.pop(0)()
    assert log == ["a", "b", "c"]
    assert maker.made(of(c, a)) == {("c",): "C", ("a",): "A"}
    assert not todo
    assert all(map(maker.is_made, of(a, b, c)))


def test_who_waits_comes_first() -> None:
    log, gate = list[str](), Event()
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as others:
        maker = KernelMaker(pool.submit)
        maker.ask(of(Kernel("first", log, gate), *(Kernel(name, log) for name in "abcd")))
        found = others.submit(maker.made, of(Kernel("c", log), Kernel("d", log), Kernel("new", log)))
        while list(maker._waiting)[:1] != [("c",)]:
            pass
        gate.set()
        assert found.result() == {("c",): "C", ("d",): "D", ("new",): "NEW"}
    assert log == ["first", "c", "d", "new", "a", "b"]


def test_one_that_fails_is_tried_once_more_by_who_waits_for_it() -> None:
    log = list[str]()
    maker = KernelMaker(lambda work: work())
    maker.ask(of(Kernel("a", log, fails=1), Kernel("b", log, fails=9)))
    assert maker.is_made(("a",))
    assert maker.made(of(Kernel("a", log))) == {("a",): "A"}
    with pytest.raises(ValueError, match="b"):
        maker.made(of(Kernel("b", log, fails=1)))
    assert log == ["a", "b", "a", "b"]
