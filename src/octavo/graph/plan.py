"""Plan: a part of a schedule with its arguments bound, a list of calls to make for a step of one size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.graph.protocol import Backend, Binder, Call, Capturing, MadeReady, Releasable

Watch = Callable[[Node, Callable[[int], AnyArray]], None]
"""Is given a node before its call is made, and a function that reads its i-th input to the host."""

Packed = tuple[tuple[Backend, Any, AnyArray], ...]
"""For each backend all inputs of a step as one value, and an array of the host like it."""


@dataclass(frozen=True)
class Plan:
    """What a step of one size runs.

    calls      a node and its call each, in order
    arguments  for each call the values that it reads, and the backend that they are of
    steps      the calls, joined by each backend to as few as it can
    inputs     the values to fill, by name, a pair (backend, value) each
    packed     the same memory once more, see `Packed`
    host       parts of these arrays, by input
    outputs    what is wanted
    made       all outputs of the graph that are made on the way, by number; of one that is gathered of several ranks'
               parts, and is not, this rank's part
    """

    calls: tuple[tuple[Node, Call], ...]
    arguments: tuple[tuple[Backend, Sequence[Any]], ...]
    steps: tuple[Call, ...]
    inputs: Mapping[str, list[tuple[Backend, Any]]]
    packed: Packed
    host: Mapping[str, list[AnyArray]]
    outputs: tuple[tuple[Backend, Any], ...]
    made: Mapping[int, tuple[Backend, Any]]

    def is_ready(self) -> bool:
        """Whether it would run at once, without waiting for kernels that are being made."""
        return all(step.is_ready() for step in self._made_ready())

    def is_captured(self) -> bool:
        """Whether it runs as it will from now on, each part as one graph of a device."""
        steps: Sequence[object] = self.steps
        return all(isinstance(step, Capturing) and step.is_captured() for step in steps)

    def make_ready(self) -> None:
        """Wait for its kernels."""
        for step in self._made_ready():
            step.make_ready()

    def release(self) -> None:
        """Give back what its calls hold on devices; they are not made again."""
        steps: Sequence[object] = self.steps
        for step in steps:
            if isinstance(step, Releasable):
                step.release()

    def _made_ready(self) -> list[MadeReady]:
        steps: Sequence[object] = self.steps
        return [step for step in steps if isinstance(step, MadeReady)]


@dataclass(frozen=True)
class StepHandle:
    """A launched step: its results where they are made, and `read`, which waits for them.

    row  gives one row of an output of the graph, read or not, as it is now, or this rank's part of it
    """

    values: tuple[Any, ...]
    read: Callable[[], list[AnyArray]]
    row: Callable[[int, int], AnyArray]


class Fed(NamedTuple):
    """Tokens that a launched step samples, column 1 of its first value: those of some rows, in this order."""

    step: StepHandle
    rows: Sequence[int]


class Steps:
    """The calls of a plan: runs of them on one backend as its binder gives them, and copies between backends."""

    def __init__(self, binders: Sequence[Binder]) -> None:
        self._binders, self._calls = binders, list[Call]()
        self._last: Binder | None = None

    def bind(self, backend: int, node: Node, inputs: Sequence[Any], out: Any) -> Call:
        binder = self._binders[backend]
        if binder is not self._last:
            self.finish()
        self._last = binder
        return binder.bind(node, inputs, out)

    def add(self, call: Call) -> Call:
        self.finish()
        self._calls.append(call)
        return call

    def finish(self) -> tuple[Call, ...]:
        """End the run, and give all calls so far."""
        if self._last is not None:
            self._calls += self._last.finish()
        self._last = None
        return tuple(self._calls)
