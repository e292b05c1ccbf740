"""What backends whose values are NumPy arrays have in common."""

from __future__ import annotations

from typing import Any

from octavo.formats.spec import AnyArray
from octavo.graph.communicator import Communicator
from octavo.graph.node import PAGE_SIZE, Node


class HostMemory:
    """Writes and reads values at once; no work is under way when a call returns."""

    communicator: Communicator | None = None

    def adds_in_place(self, node: Node) -> bool:
        return False

    def write(self, value: AnyArray, data: AnyArray) -> None:
        value[...] = data

    def read(self, value: AnyArray) -> AnyArray:
        return value.copy()

    def copy_page(self, cache: Any, target: int, source: int) -> None:
        cache[_rows_of(target)] = cache[_rows_of(source)]

    def copy_state(self, states: AnyArray, target: int, source: int) -> None:
        states[target] = states[source]

    def synchronize(self) -> None:
        return


def _rows_of(page: int) -> slice:
    return slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
