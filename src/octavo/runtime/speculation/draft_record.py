"""What became of the drafts of a request."""

from __future__ import annotations

from typing import Literal

from octavo.runtime.speculation.ngram_drafter import NgramDrafter

DrafterName = Literal["lookup", "history", "head", "draft", "grammar"]
FIRST_RATE = 0.7
"""How likely a token of a draft is to be accepted while nothing is known of it."""
SHARE = 0.1
"""The weight of a token in the running mean."""


class DraftRecord:
    """Counts of a request's drafts, how likely their tokens are to be accepted, and its drafter from its own text.

    drafted, accepted  tokens of drafts, and how many of them were accepted
    """

    def __init__(self) -> None:
        self.lookup = NgramDrafter()
        self.drafted = self.accepted = 0
        self._rates: dict[DrafterName, float] = {}

    def rate(self, drafter: DrafterName) -> float:
        """How likely a token of such a draft is to be accepted, if those before it are."""
        return 1.0 if drafter == "grammar" else self._rates.get(drafter, FIRST_RATE)

    def add(self, drafter: DrafterName, drafted: int, accepted: int) -> None:
        """Count a verified draft: tokens after the first that was not accepted tell nothing."""
        self.drafted += drafted
        self.accepted += accepted
        rate = self.rate(drafter)
        for right in (*[1.0] * accepted, *[0.0] * (accepted < drafted)):
            rate += SHARE * (right - rate)
        self._rates[drafter] = rate
