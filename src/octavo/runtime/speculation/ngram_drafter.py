"""N-gram drafter (prompt lookup): how a text may go on, from where its last tokens occurred in it before."""

from __future__ import annotations

from collections.abc import Sequence

LENGTH = 3
"""Tokens that have to be the same."""


class NgramDrafter:
    """Drafts from n-grams of a text (Saxena, "Prompt lookup decoding", 2023)."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = LENGTH

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
