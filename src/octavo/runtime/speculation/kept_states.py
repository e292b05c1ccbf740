"""States of sequences as they were before drafts, so that refused tokens can be taken back out of them.

No token can be taken out of the state of a layer (Mamba, delta rule, RWKV). Before a step with a draft its state is
copied; where a token is refused, the copy takes its place, and the accepted tokens are computed again with the next
step's own, which costs little more than the step.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.runtime.cache.page_pool import PagePool, Sequence

MOST_LACKING = 4
"""The most tokens that the state of a sequence lacks where it has another draft."""


class KeptStates:
    """The states of some sequences before a step. There is a free slot for each."""

    def __init__(self, pool: PagePool, sequences: Iterable[Sequence]) -> None:
        self._states, self._kept = pool.states, dict[Sequence, tuple[int, int]]()
        if self._states is not None:
            for sequence in sequences:
                assert sequence.slot is not None
                self._kept[sequence] = self._states.fork(sequence.slot), sequence.seen

    def settle(self, refused: Iterable[Sequence]) -> None:
        """Give the slots back; sequences of which tokens were refused have their states as before."""
        if self._states is None:
            return
        for sequence in refused:
            kept, seen = self._kept.pop(sequence)
            assert sequence.slot is not None
            self._states.give_back(sequence.slot)
            sequence.slot, sequence.seen = kept, seen
        for kept, _ in self._kept.values():
            self._states.give_back(kept)
        self._kept.clear()


def can_go_back(pool: PagePool, sequence: Sequence) -> bool:
    """Whether a sequence may have a draft: its state, if it has one, is its own, and lacks few tokens; and it keeps the
    pages that these see."""
    return pool.states is None or (pool.windows is None and 0 <= len(sequence) - sequence.seen <= MOST_LACKING)
