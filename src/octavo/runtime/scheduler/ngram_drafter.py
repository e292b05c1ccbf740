"""Prompt lookup: what a text may go on with, from where its last tokens stood in it before."""

from __future__ import annotations

from collections.abc import Sequence

LENGTH = 3
"""Tokens that have to be the same."""
SHARE = 0.2
"""The weight of a new count in a running mean."""
FIRST_WAIT, LONGEST_WAIT = 16, 512
"""Chances that are left out before one is taken again, where drafts did not pay; twice as many each time."""


class Lookup:
    """The places of a text's tokens, and how well drafts from it did (Saxena, "Prompt lookup decoding", 2023).

    accepted  tokens of a draft that turn out right, as lately seen
    drafts, drafted, taken   how many there were, their tokens, and how many of these were right
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = LENGTH
        self.accepted = 1.0
        self.drafts = self.drafted = self.taken = 0
        self._left_out, self._wait = 0, FIRST_WAIT

    def draft(self, tokens: Sequence[int], n: int) -> list[int]:
        """n tokens that may come next; none where the last ones are new. The text only grows from call to call.

        Where the text from there on is shorter than n, it goes on with the draft itself.
        """
        n_tokens = len(tokens)
        for end in range(self._read, n_tokens):
            self._ends[tuple(tokens[end - LENGTH : end])] = end
        self._read = max(n_tokens, LENGTH)
        at = self._ends.get(tuple(tokens[-LENGTH:]))
        if at is None:
            return []
        known = tokens[at : at + n]
        return [known[i % len(known)] for i in range(n)]

    def pays(self, cost: float) -> bool:
        """Whether to try a draft that costs as much as so many tokens; now and then where it did not pay lately."""
        if self.accepted > cost:
            self._left_out, self._wait = 0, FIRST_WAIT
            return True
        self._left_out += 1
        if self._left_out < self._wait:
            return False
        self._left_out, self._wait = 0, min(2 * self._wait, LONGEST_WAIT)
        return True

    def verified(self, drafted: int, taken: int, *, forced: bool = False) -> None:
        """Take down how a draft did; one that is `forced` does not come from here."""
        self.drafts += 1
        self.drafted += drafted
        self.taken += taken
        if not forced:
            self.accepted += SHARE * (taken - self.accepted)
