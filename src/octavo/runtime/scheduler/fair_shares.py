"""Fairness between API keys: deficit round robin by tokens, and places in steps by weight.

Keys take turns with their prompts. A turn is worth QUANTUM tokens times the key's weight; tokens that are computed for
a key, of prompts and of replies, are taken from that, also if they are more than were left. A key that comes anew has
its turn before the others (Shreedhar and Varghese, "Efficient fair queuing using deficit round robin", 1995, in the
form of RFC 8290), so that one that asks seldom waits for no other's prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.runtime.scheduler.request import Request

QUANTUM = 512
"""Tokens of a turn of a key of weight 1."""
PART = 0.25
"""Of the time that a step with prompts may take: what it takes of keys that do not come anew."""


class FairShares:
    """The keys that have requests, in the order of their turns.

    Where there are keys at all, steps with prompts are as short without replies beside them as with, and those of keys
    that do not come anew are shorter: one that does then waits for the rest of such a step.
    """

    def __init__(self) -> None:
        self.used = False
        self._left: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._new: list[str] = []
        self._old: list[str] = []

    @property
    def several(self) -> bool:
        """Whether there is more than one key to be fair to."""
        return len(self._weights) > 1

    def update(self, requests: Iterable[Request]) -> None:
        """Take note of which keys have requests; one that has none any longer has nothing left."""
        if not self.used:
            return
        self._weights = {request.key: request.weight for request in requests}
        self._left = {key: left for key, left in self._left.items() if key in self._weights}
        self._new, self._old = ([key for key in keys if key in self._left] for keys in (self._new, self._old))
        for key, weight in self._weights.items():
            if key not in self._left:
                self._left[key] = QUANTUM * weight
                self._new.append(key)

    def charge(self, key: str, tokens: int) -> None:
        """Take tokens from what a key has left. It owes one turn at most: a key that was alone owes nobody."""
        if key in self._left:
            self._left[key] = max(self._left[key] - tokens, -QUANTUM * self._weights[key])

    def turns(self) -> dict[str, int]:
        """The number of each key's turn: the first one has something left."""
        while (keys := [*self._new, *self._old]) and self._left[keys[0]] <= 0:
            (self._new if self._new else self._old).pop(0)
            self._old.append(keys[0])
            self._left[keys[0]] += QUANTUM * self._weights[keys[0]]
        return {key: i for i, key in enumerate(keys)}

    def part_of_step(self, key: str) -> float | None:
        """The part of its target that a step may take whose first prompt is of this key; None for no such limit."""
        return None if not self.used else 1.0 if key in self._new else PART

    def places(self, key: str, most: int) -> int:
        """How many of the places in a step are a key's own, by weight."""
        return max(1, int(most * self._weights[key] / sum(self._weights.values())))

    def next_waiting(self, waiting: Iterable[Request], running: Iterable[Request]) -> Request | None:
        """The request that begins next: of the key with the fewest running for its weight."""
        counts = Counter(r.key for r in running)
        return min(waiting, key=lambda r: (r.priority, counts[r.key] / r.weight, r.arrival), default=None)

    def beyond(self, running: list[Request], most: int, key: str | None = None) -> Request | None:
        """The newest request of the key that has the most beyond its places; None where all have their own.

        `key` is to get a place: None too where it has all of its own.
        """
        if not self.several:
            return None
        counts = Counter(r.key for r in running)
        if key is not None and counts[key] >= self.places(key, most):
            return None
        over = {k: (n - self.places(k, most)) / self._weights[k] for k, n in counts.items() if k in self._weights}
        worst = max(over, key=lambda k: over[k], default=None)
        if worst is None or over[worst] <= 0:
            return None
        return next((r for r in reversed(running) if r.key == worst), None)
