"""How many tokens of prompts a step takes, so that replies under way do not wait long for their next token."""

from __future__ import annotations

from collections.abc import Collection

from octavo.runtime.buckets import TILE

SHARE, SLOW_SHARE = 0.2, 0.02
"""Of a new measurement in what is believed of times, and of how they grow with the context."""
FIRST_GUESS = 4 * TILE
"""Tokens of prompts beside replies as long as nothing is known of their time."""
LEAST = TILE // 4
"""Of a prompt in a step where any number of tokens may be in one, and TILE take longer than the target."""
CAUTION = 2.0
"""A step is planned below its target by so many mean errors of what was expected, as Jacobson's timer for TCP is."""
FREE = 1.1
"""Tokens are taken that make a step no longer than so many times that with the least of them, whatever that takes."""


class Pace:
    """A step's time is that of its replies and that of each token of its prompts, which grows with what came before it.

    Both are learned from steps, and so is how far off they are. Where steps have few sizes, whose times are measured
    before the first request (`Measured`), only what contexts add to these is learned.

    n_batch  most tokens in a step
    target   seconds that a step may take while there are replies under way; 0 for no bound
    least    tokens of prompts that a step takes whatever its time is, so that these always get on; TILE where the
             replies alone take longer than the target
    """

    def __init__(self, n_batch: int, target: float = 0.0, least: int = TILE) -> None:
        self.n_batch, self.target, self.least = n_batch, target, least
        self.measured = Measured()
        self.forget()

    def forget(self) -> None:
        """Know nothing of steps, as after the first ones, which take longer than others."""
        self._replies: dict[int, float] = {}  # seconds of a step, by its replies' number in bits
        self._alone, self._beside = Line(), Line()  # seconds of a token of prompts, without replies and with them
        self._more = Line()  # seconds of a step with prompts beyond those that were measured
        self._error = 0.0  # seconds
        self._largest = FIRST_GUESS // 2  # tokens of prompts beside replies so far; no step has over twice as many

    def chunk(self, replies: int, depth: int = 0) -> int:
        """Tokens of prompts for a step with so many replies, where `depth` tokens of a prompt came before."""
        most = max(self.n_batch - replies, 0)
        if not replies or not self.target:
            return most
        longest = max(self.target - CAUTION * self._error, self.target / 2)
        if self.measured:
            longest = max(longest, FREE * self.expected(replies, self.least, depth))
            fitting = (n for n in self.measured.prompts(replies) if self.expected(replies, n, depth) <= longest)
            return min(max(fitting), most)
        left = longest - self.seconds(replies)
        least = self.least if left > 0 else TILE
        wanted = min(self.tokens_in(left, depth), 2 * self._largest)
        wanted -= wanted % (TILE if wanted >= TILE else least)
        return min(max(wanted, least), most)

    def expected(self, replies: int, chunk: int, depth: int) -> float:
        """Seconds of a step with so many replies and tokens of prompts, where `depth` came before these."""
        if self.measured:
            return self.measured.seconds(replies, chunk) + (self._more.at(depth) if self._more.known else 0.0)
        line = self._beside if self._beside.known else self._alone
        return self.seconds(replies) + (chunk * line.at(depth) if line.known else 0.0)

    def tokens_in(self, seconds: float, depth: int = 0) -> int:
        """Tokens of prompts that take so long, without the replies beside them."""
        line = self._beside if self._beside.known else self._alone
        return int(max(seconds, 0.0) / line.at(depth)) if line.known else FIRST_GUESS

    def seconds(self, replies: int) -> float:
        """Of a step with so many replies, as far as is known."""
        nearest = min(self._replies, key=lambda bits: abs(bits - replies.bit_length()), default=None)
        return 0.0 if nearest is None else self._replies[nearest]

    def seen(self, replies: int, chunk: int, seconds: float, depth: int = 0) -> None:
        """Learn from a step with so many replies and tokens of prompts, where `depth` came before these on average."""
        if not chunk:
            bits = replies.bit_length()
            before = self._replies.get(bits)
            self._replies[bits] = seconds if before is None else before + SHARE * (seconds - before)
        elif chunk >= min(self.least, TILE):
            if replies and (self._beside.known or self._more.known):
                self._error += SHARE * (abs(seconds - self.expected(replies, chunk, depth)) - self._error)
            if self.measured:
                self._more.add(depth, max(seconds - self.measured.seconds(replies, chunk), 0.0))
                return
            if replies:
                self._largest = max(self._largest, chunk)
            line = self._beside if replies else self._alone
            line.add(depth, max(seconds - self.seconds(replies), 0.1 * seconds) / chunk)


class Measured:
    """Seconds of steps of few sizes, their contexts empty: by replies, and by tokens of prompts beside them."""

    def __init__(self) -> None:
        self._seconds: dict[int, dict[int, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def add(self, replies: int, prompts: int, seconds: float) -> None:
        """Take the time of a step."""
        self._seconds.setdefault(replies, {})[prompts] = seconds

    def prompts(self, replies: int) -> list[int]:
        """Tokens of prompts that there are times of beside so many replies, or the next larger number of these."""
        return list(self._seconds[_next(self._seconds, replies)])

    def seconds(self, replies: int, prompts: int) -> float:
        """Of a step of so many replies and tokens of prompts, or the next larger one."""
        times = self._seconds[_next(self._seconds, replies)]
        return times[_next(times, prompts)]


def _next(sizes: Collection[int], n: int) -> int:
    """The smallest size that is not below n, or the largest."""
    return min((size for size in sizes if size >= n), default=max(sizes))


class Line:
    """Values along a line: their level as it was lately, and the slope that they have had, which is never down."""

    def __init__(self) -> None:
        self.known = 0
        self._x = self._y = self._spread = self._rise = self._middle = self._mean = 0.0

    def add(self, x: float, y: float) -> None:
        self.known += 1
        share, slow = max(SHARE, 1 / self.known), max(SLOW_SHARE, 1 / self.known)
        self._x += share * (x - self._x)
        self._y += share * (y - self._y)
        dx, dy = x - self._middle, y - self._mean
        self._middle += slow * dx
        self._mean += slow * dy
        self._spread += slow * ((1 - slow) * dx * dx - self._spread)
        self._rise += slow * ((1 - slow) * dx * dy - self._rise)

    def at(self, x: float) -> float:
        """What is expected at x, above 0; there has been an `add`."""
        slope = max(self._rise / self._spread, 0.0) if self._spread else 0.0
        return max(self._y + slope * (x - self._x), 0.1 * self._y, 1e-9)
