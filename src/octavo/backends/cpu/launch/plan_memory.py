"""What the calls of one plan have in common."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from octavo.formats.spec import AnyArray


class PlanMemory:
    """Memory that several nodes of a plan work with, and what lies in it when the node that is being bound runs.

    Nodes are bound in the order in which they run, so what an earlier one has left there is known. `exact`: a token's
    numbers are to be the same whatever else is in a step. `threads` is how many share the plan's calls.
    """

    def __init__(self, *, exact: bool = False, threads: int = 1) -> None:
        self.exact, self.threads = exact, threads
        self._memory: dict[Hashable, AnyArray] = {}
        self._contents: dict[int, tuple[object, ...]] = {}

    def memory(self, name: Hashable, shape: tuple[int, ...], dtype: Any) -> AnyArray:
        """The plan's memory of this name and shape."""
        key = name, shape
        if key not in self._memory:
            self._memory[key] = np.empty(shape, dtype)
        return self._memory[key]

    def holds(self, memory: AnyArray, *sources: object) -> bool:
        """Whether memory of the plan holds what is made of `sources`; if not, the node that is being bound makes it."""
        held = self._contents.get(id(memory)) == sources
        self._contents[id(memory)] = sources
        return held
