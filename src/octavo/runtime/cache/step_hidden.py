"""Steps whose last output are hidden states, which are kept when the step is read."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from octavo.formats.spec import F32, AnyArray
from octavo.graph.plan import StepHandle
from octavo.runtime.cache.hidden_rows import HiddenRows
from octavo.runtime.cache.page_pool import Sequence


class TakesHidden(Protocol):
    """A head's engine; `hidden` is what the last step gave, [sum of outputs, width]."""

    hidden: F32


def kept(handle: StepHandle, of: Seq[tuple[Sequence, int, int, int]]) -> StepHandle:
    """A step of a model with a head, whose hidden states [tokens, width] its sequences keep; `of` are its `places`."""

    def read() -> list[AnyArray]:
        *found, hidden = handle.read()
        for sequence, start, first, stop in of:
            if (rows := sequence.hidden) is None:
                rows = sequence.hidden = HiddenRows()
            if stop == first + 1:
                rows.add(start, hidden[first])
            else:
                rows.put(start, hidden[first:stop])
        return found

    return StepHandle(handle.values[:-1], read, handle.row)


def handed_over(handle: StepHandle, head: TakesHidden) -> StepHandle:
    """A step of a head, whose hidden states its engine has until the next one."""

    def read() -> list[AnyArray]:
        *found, head.hidden = handle.read()
        return found

    return StepHandle(handle.values[:-1], read, handle.row)
