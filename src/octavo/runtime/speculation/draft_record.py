"""What became of the drafts of a request, and how likely tokens of its next ones are to be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from octavo.runtime.speculation.ngram_drafter import NgramDrafter

DrafterName = Literal["lookup", "history", "head", "draft", "grammar"]
FIRST_RATE, FIRST_WEIGHT = 0.7, 2
"""How likely a token of a draft is to be accepted while nothing is known of it, and how many tokens that counts as."""
SHARE, SHARE_OF_ALL = 0.1, 0.02
"""The least weight of a token in a request's running means, and in those of all requests."""


class Acceptance:
    """How likely a token of each drafter is to be accepted, if those before it are: running means.

    They begin at those of `usual`, or at FIRST_RATE, and learn fast from their first tokens.
    """

    def __init__(self, share: float = SHARE_OF_ALL, usual: Acceptance | None = None) -> None:
        self.usual, self._share = usual, share
        self._means: dict[DrafterName, tuple[float, int]] = {}

    def rate(self, drafter: DrafterName) -> float:
        if drafter == "grammar":
            return 1.0
        if drafter in self._means:
            return self._means[drafter][0]
        return FIRST_RATE if self.usual is None else self.usual.rate(drafter)

    def add(self, drafter: DrafterName, right: Sequence[bool]) -> None:
        """Learn from tokens, each of which was accepted or not."""
        rate, seen = self.rate(drafter), self._means.get(drafter, (0.0, FIRST_WEIGHT))[1]
        for one in right:
            seen += 1
            rate += max(self._share, 1 / seen) * (one - rate)
        self._means[drafter] = rate, seen
        if self.usual is not None:
            self.usual.add(drafter, right)


class DraftRecord:
    """Counts of a request's drafts, how likely their tokens are to be accepted, and its drafter from its own text.

    drafted, accepted  tokens of drafts, and how many of them were accepted
    """

    def __init__(self) -> None:
        self.lookup = NgramDrafter()
        self.drafted = self.accepted = 0
        self.acceptance = Acceptance(SHARE)
        self._untried: tuple[DrafterName, int, int] | None = None

    def rate(self, drafter: DrafterName) -> float:
        """How likely a token of such a draft is to be accepted, if those before it are."""
        return self.acceptance.rate(drafter)

    def add(self, drafter: DrafterName, drafted: int, accepted: int) -> None:
        """Count a verified draft: tokens after the first that was not accepted tell nothing."""
        self.drafted += drafted
        self.accepted += accepted
        self.acceptance.add(drafter, [*[True] * accepted, *[False] * (accepted < drafted)])

    def leave_untried(self, drafter: DrafterName, place: int, token: int) -> None:
        """A draft is not verified, but would have had this token at this place of the text; `compare` tells of it."""
        self._untried = drafter, place, token

    def compare(self, tokens: Sequence[int]) -> None:
        """Learn from the draft that was left untried what the text says now: that costs nothing."""
        if self._untried is not None and self._untried[1] < len(tokens):
            drafter, place, token = self._untried
            self.acceptance.add(drafter, [tokens[place] == token])
            self._untried = None
