"""How many tokens of prompts a step takes, so that replies under way do not wait long for their next token."""

from __future__ import annotations

from octavo.runtime.buckets import TILE

SHARE = 0.2
"""Of a new measurement in what is believed."""


class Pace:
    """A step's time is that of its replies and that of each token of its prompts; both are learned from steps.

    A step takes TILE tokens of prompts whatever its time is, so that these always get on.

    n_batch  most tokens in a step
    target   seconds that a step may take while there are replies under way; 0 for no bound
    """

    def __init__(self, n_batch: int, target: float = 0.0) -> None:
        self.n_batch, self.target = n_batch, target
        self._replies: dict[int, float] = {}  # seconds of a step, by its replies' number in bits
        self._token: float | None = None  # seconds

    def chunk(self, replies: int) -> int:
        """Tokens of prompts for a step with so many replies."""
        most = self.n_batch - replies
        if not replies or not self.target:
            return max(most, 0)
        wanted = 4 * TILE if self._token is None else int((self.target - self._seconds(replies)) / self._token)
        return max(min(wanted // TILE * TILE, most), min(TILE, most), 0)

    def _seconds(self, replies: int) -> float:
        """Of a step with so many replies, as far as is known."""
        nearest = min(self._replies, key=lambda bits: abs(bits - replies.bit_length()), default=None)
        return 0.0 if nearest is None else self._replies[nearest]

    def seen(self, replies: int, chunk: int, seconds: float) -> None:
        """Learn from a step with so many replies and tokens of prompts."""
        if not chunk:
            bits = replies.bit_length()
            self._replies[bits] = _mixed(self._replies.get(bits), seconds)
        elif chunk >= TILE:
            self._token = _mixed(self._token, max(seconds - self._seconds(replies), 0.1 * seconds) / chunk)


def _mixed(before: float | None, now: float) -> float:
    return now if before is None else before + SHARE * (now - before)
