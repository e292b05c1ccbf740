"""What drafts take to make, by how many there are and how long: as measured, and along lines between and beyond."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

SHARE, FIRST_MEASURED, MOST_UNUSUAL = 0.2, 8, 2.0
"""The weight of a new measurement in the running mean; of how many first ones the least counts; and how many times the
mean one counts at most."""


class MakingTimes:
    """Seconds of drafts for a number of requests, by their tokens.

    captures  steps are padded to a few sizes, and captured the second time
    """

    def __init__(self, *, captures: bool = False) -> None:
        self._captures = captures
        self._seconds: dict[int, dict[int, float]] = {}
        self._seen = Counter[tuple[int, int]]()
        self._begun = Counter[tuple[int, int, int]]()

    def add(self, requests: int, read: int, tokens: int, seconds: float) -> None:
        """Learn what drafts of `tokens` tokens took together, beside `read` tokens of their requests; not from the
        first step of a size, for which kernels are compiled and calls bound, nor from one that is captured."""
        size = requests, 1 << (read - 1).bit_length() if self._captures else read, tokens
        self._begun[size] += 1
        if self._begun[size] <= (2 if self._captures else 1):
            return
        known = self._seconds.setdefault(requests, {})
        before = known.get(tokens, seconds)
        self._seen[requests, tokens] += 1
        if self._seen[requests, tokens] <= FIRST_MEASURED:
            known[tokens] = min(before, seconds)
        else:
            known[tokens] = before + SHARE * (min(seconds, MOST_UNUSUAL * before) - before)

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
