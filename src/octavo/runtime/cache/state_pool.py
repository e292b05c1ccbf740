"""Slots for states: what layers without keys and values keep of a sequence, of a size that does not grow with it.

A state has seen all tokens of its sequence, and there is no way back to fewer. So states are kept, too, as they were
after some tokens: the prefix cache finds them, and a sequence that begins with these tokens goes on with a copy. They
lie in slots that no sequence needs; where one does, the state goes whose last use is longest ago.

A sequence whose state has seen others than its own tokens, as after a step that failed, has it computed again when it
goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from octavo.runtime.cache.block_copier import Copier

MOST_KEPT = 11
"""States that are kept, at the most, where all sequences that may be in a step are."""


def slots_for(sequences: int) -> int:
    """Slots where this many sequences are in a step: one for each, and others to keep states in."""
    return sequences + min(sequences + 3, MOST_KEPT)


@dataclass(eq=False, slots=True)
class KeptState:
    """A state in a slot, after `length` tokens; `home` has it at `at`, the last of these."""

    slot: int
    length: int
    home: dict[tuple[int, ...], KeptState]
    at: tuple[int, ...]


class StatePool:
    """Hands out slots, numbered from 0. What is in a slot when it is taken is not read."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._free = list(reversed(range(n_slots)))
        self._kept: OrderedDict[KeptState, None] = OrderedDict()  # the one whose last use is longest ago first
        self.copier = Copier()

    @property
    def free(self) -> int:
        """Slots that a sequence can get: those of kept states, too."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        """States that are kept."""
        return len(self._kept)

    def take(self) -> int:
        """A slot; one is free."""
        if not self._free:
            self.drop(next(iter(self._kept)))
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def fork(self, slot: int) -> int:
        """Another slot with the state of this one; one is free."""
        taken = self.take()
        self.copier.copy(taken, slot)
        return taken

    def resume(self, kept: KeptState | None) -> tuple[int, int]:
        """A slot with what was kept, and how many tokens that has seen: 0 where nothing is; one is free."""
        there = kept is not None and kept in self._kept
        slot = self.take()
        if kept is None or not there:
            return slot, 0
        if slot != kept.slot:
            self.copier.copy(slot, kept.slot)
        return slot, kept.length

    def keep(self, slot: int, length: int, home: dict[tuple[int, ...], KeptState], at: tuple[int, ...]) -> None:
        """Keep the state in a slot, which no sequence has any longer, at a place of `home`."""
        home[at] = kept = KeptState(slot, length, home, at)
        self._kept[kept] = None

    def touch(self, kept: KeptState) -> None:
        """A kept state is used now."""
        self._kept.move_to_end(kept)

    def drop(self, kept: KeptState) -> None:
        """Forget a kept state."""
        del self._kept[kept], kept.home[kept.at]
        self._free.append(kept.slot)
