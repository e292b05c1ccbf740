"""Slots for states: what layers without keys and values keep of a sequence, of a size that does not grow with it.

A state has seen all tokens of its sequence, and there is no way back to fewer. A sequence whose state has seen others
than its own tokens, as after a step that failed, has it computed again when it goes on.
"""

from __future__ import annotations

from octavo.runtime.copier import Copier

SPARE = 2
"""Slots beside those of sequences in a step: for one that is kept for a prompt to go on with it, and another."""


class StatePool:
    """Hands out slots, numbered from 0. What is in a slot when it is given to a sequence is not read."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._free = list(reversed(range(n_slots)))
        self.copier = Copier()

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A slot; one is free."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def fork(self, slot: int) -> int:
        """Another slot with the state of this one; one is free."""
        taken = self.take()
        self.copier.copy(taken, slot)
        return taken
