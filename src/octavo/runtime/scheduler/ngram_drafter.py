"""N-gram drafter (prompt lookup): how a text may go on, from where its last tokens occurred in it before."""

from __future__ import annotations

from collections.abc import Sequence

LENGTH = 3
"""Tokens that have to be the same."""
SHARE = 0.2
"""The weight of a new count in a running mean."""
FIRST_BACKOFF, MAX_BACKOFF = 16, 512
"""Steps without a draft before one is tried again, where drafts did not pay; twice as many each time."""


class NgramDrafter:
    """Drafts from n-grams of a text (Saxena, "Prompt lookup decoding", 2023), and how many tokens are accepted.

    mean_accepted  tokens of a draft that are accepted, a running mean
    drafts, drafted, accepted  how many there were, their tokens, and how many of these were accepted
    """

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = LENGTH
        self.mean_accepted = 1.0
        self.drafts = self.drafted = self.accepted = 0
        self._skipped, self._backoff = 0, FIRST_BACKOFF

    def draft(self, tokens: Sequence[int], n: int) -> list[int]:
        """n tokens that may come next; none where the last ones are new. The text only grows from call to call, unless
        `forget` is told.

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

    def forget(self, length: int) -> None:
        """The text has only that many tokens left."""
        self._ends = {tokens: end for tokens, end in self._ends.items() if end < length}
        self._read = max(min(self._read, length), LENGTH)

    def pays(self, cost: float) -> bool:
        """Whether to try a draft that costs as much as `cost` tokens; now and then where it did not pay lately."""
        if self.mean_accepted > cost:
            self._skipped, self._backoff = 0, FIRST_BACKOFF
            return True
        self._skipped += 1
        if self._skipped < self._backoff:
            return False
        self._skipped, self._backoff = 0, min(2 * self._backoff, MAX_BACKOFF)
        return True

    def record(self, drafted: int, accepted: int, *, forced: bool = False) -> None:
        """Count a verified draft; a `forced` one does not come from here."""
        self.drafts += 1
        self.drafted += drafted
        self.accepted += accepted
        if not forced:
            self.mean_accepted += SHARE * (accepted - self.mean_accepted)
