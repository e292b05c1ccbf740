"""What drafts take to make, by how many there are and how long: as measured, and along lines between and beyond."""

from __future__ import annotations

from itertools import pairwise

SHARE, SHARE_OF_LESS = 0.2, 0.5
"""The weight of a new measurement in the running mean of times, and of a shorter one: the first ones bind calls."""


class MakingTimes:
    """Seconds of drafts for a number of requests, by their tokens."""

    def __init__(self) -> None:
        self._seconds: dict[int, dict[int, float]] = {}

    def add(self, requests: int, tokens: int, seconds: float) -> None:
        """Learn what drafts of `tokens` tokens took together."""
        known = self._seconds.setdefault(requests, {})
        before = known.get(tokens, seconds)
        known[tokens] = before + (SHARE if seconds > before else SHARE_OF_LESS) * (seconds - before)

    def at(self, requests: int, tokens: int) -> float:
        """Expected; 0 while nothing is known."""
        if not self._seconds:
            return 0.0
        points = sorted(self._seconds[min(self._seconds, key=lambda n: abs(n - requests))].items())
        n, seconds = points[0]
        if len(points) == 1 or tokens <= n:
            return seconds * tokens / n
        line = next((pair for pair in pairwise(points) if tokens <= pair[1][0]), points[-2:])
        (x, y), (other_x, other_y) = line
        return max(y + (other_y - y) * (tokens - x) / (other_x - x), y)
