"""The executor of rank 0: what it is called for, the other ranks' executors do at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from octavo.formats import QTensor
from octavo.formats.spec import AnyArray
from octavo.graph.collective_ops import COLLECTIVES
from octavo.graph.executor import Executor
from octavo.graph.node import Graph, Sizes
from octavo.graph.plan import Fed, Plan, StepHandle, Watch
from octavo.graph.protocol import Backend
from octavo.graph.schedule import Schedule
from octavo.runtime.parallel import messages
from octavo.runtime.parallel.group import RankGroup

HANDLES_KEPT = 4
"""Launches whose values later ones may be fed."""
FIRST, VECTORS = 0, 1
"""Numbers of executors: the engine's, and that for vectors of tokens."""


class LeadingExecutor(Executor):
    """Sends each call to the followers of a group, then makes it. `number` is whose executor it is there.

    Raises RankError where a rank has ended, or ends.
    """

    def __init__(
        self, group: RankGroup, number: int, schedule: Schedule, backends: Sequence[Backend], limits: Sizes,
        outputs: Sequence[int] | None = None, shares: Executor | None = None, fed: Collection[str] = (),
    ) -> None:
        self._group, self._number = group, number
        self._handles = Handles()
        super().__init__(schedule, backends, limits, outputs, shares, fed)
        group.executors.add(self)

    def _with_all(self, message: messages.ToRank) -> AbstractContextManager[None]:
        return self._group.together(message)

    def plan(self, sizes: Sizes, wanted: tuple[int, ...] | None = None) -> Plan:
        if self._group.acts:  # in a step, which the others bind as well
            return super().plan(sizes, wanted)
        with self._with_all(messages.Plan(self._number, dict(sizes), wanted)):
            return super().plan(sizes, wanted)

    def run(self, inputs: Mapping[str, AnyArray], sizes: Sizes) -> list[AnyArray]:
        with self._with_all(messages.Run(self._number, dict(sizes), messages.packed(inputs))):
            return super().run(inputs, sizes)

    def watch(self, inputs: Mapping[str, AnyArray], sizes: Sizes, watch: Watch) -> list[AnyArray]:
        with self._with_all(messages.Run(self._number, dict(sizes), messages.packed(inputs))):
            return super().watch(inputs, sizes, watch)

    def launch(
        self, inputs: Mapping[str, AnyArray], sizes: Sizes, wanted: tuple[int, ...],
        fed: Mapping[str, Fed] | None = None,
    ) -> StepHandle:
        told = {name: self._handles.numbered(source) for name, source in (fed or {}).items()}
        message = messages.Launch(self._number, dict(sizes), messages.packed(inputs), wanted, told)
        with self._with_all(message):
            handle = self._handles.keep(super().launch(inputs, sizes, wanted, fed))
        row = partial(self._row, self._handles.last, handle)
        return StepHandle(handle.values, partial(self._read, handle.read), row)

    def _read(self, read: Callable[[], list[AnyArray]]) -> list[AnyArray]:
        """What a step made, unless a rank has ended meanwhile."""
        found = read()
        self._group.require()
        return found

    def _row(self, launch: int, handle: StepHandle, output: int, number: int) -> AnyArray:
        """A row of an output, whose parts the others send where it was not gathered."""
        own, node = handle.row(output, number), self.schedule.graph.outputs[output]
        if own.shape[-1] == node.shape[-1]:
            return own
        found = np.empty((1, *(d for d in node.shape[1:] if isinstance(d, int))), own.dtype)
        parts = [own, *self._group.ask(messages.Row(self._number, launch, output, number))]
        for ((start, stop),), part in zip(node.attrs["parts"], parts, strict=True):
            found[:, start:stop] = part
        return found

    def values(
        self, inputs: Mapping[str, AnyArray], sizes: Sizes, fed: Mapping[str, Any]
    ) -> list[tuple[Backend, Any]]:
        raise NotImplementedError("values that stay on several ranks")

    def copy_page(self, target: int, source: int, rows: str = "rows") -> None:
        with self._with_all(messages.CopyPage(target, source, rows)):
            super().copy_page(target, source, rows)

    def copy_state(self, target: int, source: int) -> None:
        with self._with_all(messages.CopyState(target, source)):
            super().copy_state(target, source)

    def replace(self, tensor: QTensor) -> None:
        raise NotImplementedError("weights that several ranks have a part of")


class Handles:
    """The last launches and their values, which are numbered alike on all ranks."""

    def __init__(self) -> None:
        self._count, self._kept = 0, deque[tuple[int, StepHandle]](maxlen=HANDLES_KEPT)

    @property
    def last(self) -> int:
        """The number of the last one."""
        return self._count - 1

    def handle(self, launch: int) -> StepHandle:
        """The launch of a number."""
        return next(handle for number, handle in self._kept if number == launch)

    def keep(self, handle: StepHandle) -> StepHandle:
        self._kept.append((self._count, handle))
        self._count += 1
        return handle

    def numbered(self, fed: Fed) -> messages.FedFrom:
        """Which launch samples these tokens, and their rows."""
        return next(number for number, handle in self._kept if handle.values is fed.step.values), tuple(fed.rows)

    def fed(self, source: messages.FedFrom) -> Fed:
        """The tokens that `numbered` said."""
        number, rows = source
        return Fed(self.handle(number), rows)


def collectives_of(graph: Graph) -> str:
    """What ranks run together, in order: the same on all of them, or they would wait for each other forever."""
    found = [n for n in graph.nodes if n.op in COLLECTIVES]
    return "; ".join(f"{n.op} {n.name} {list(n.shape)}" for n in found)
