"""What backends whose values are NumPy arrays have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.formats.spec import U8, AnyArray
from octavo.graph.communicator import Communicator
from octavo.graph.node import PAGE_SIZE, Node
from octavo.graph.protocol import Saved


class SavedValues:
    """A copy of values, which is there at once."""

    def __init__(self, raw: U8) -> None:
        self._raw, self.nbytes = raw, raw.nbytes

    def data(self) -> U8:
        return self._raw


class HostMemory:
    """Writes and reads values at once; no work is under way when a call returns."""

    communicator: Communicator | None = None

    def adds_in_place(self, node: Node) -> bool:
        return False

    def write(self, value: AnyArray, data: AnyArray) -> None:
        value[...] = data

    def read(self, value: AnyArray) -> AnyArray:
        return value.copy()

    def page_parts(self, cache: Any, page: int) -> list[AnyArray]:
        return [cache[_rows_of(page)]]

    def copy_page(self, cache: Any, target: int, source: int) -> None:
        for into, part in zip(self.page_parts(cache, target), self.page_parts(cache, source), strict=True):
            into[...] = part

    def save(self, values: Sequence[AnyArray]) -> SavedValues:
        return SavedValues(np.concatenate([value.reshape(-1).view(np.uint8) for value in values]))

    def restore(self, values: Sequence[AnyArray], data: U8 | Saved) -> None:
        at, saved = 0, data if isinstance(data, np.ndarray) else data.data()
        for value in values:
            raw = value.reshape(-1).view(np.uint8)
            raw[:] = saved[at : at + raw.nbytes]
            at += raw.nbytes

    def copy_state(self, states: AnyArray, target: int, source: int) -> None:
        states[target] = states[source]

    def synchronize(self) -> None:
        return


def _rows_of(page: int) -> slice:
    return slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
