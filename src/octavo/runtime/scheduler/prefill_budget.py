"""Chunked prefill: the budget of prompt tokens in a step, so that replies beside them keep their pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

import numpy as np

from octavo.runtime.engine.captured_sizes import TILE

SHARE, SLOW_SHARE = 0.2, 0.02
"""The weight of a new measurement in the running mean of times, and in that of how they grow with the context."""
FIRST_MEASURED = 3
"""First steps of a number of replies, for which calls are bound, of which the least time counts."""
FIRST_GUESS = 4 * TILE
"""Tokens of prompts beside replies while nothing is known of their time."""
MIN_CHUNK, SMALL_TILE = TILE // 4, 2
"""The fewest tokens of a prompt in a step of any size, where TILE take longer than the target. Numbers below TILE are
multiples of SMALL_TILE, for each of them has a plan of its own."""
CAUTION = 2.0
"""Mean errors of the expected time by which a step is planned below its target, as in Jacobson's timer for TCP."""
FREE = 1.1
"""A step may take this many times as long as one with the fewest tokens of prompts, whatever that takes."""
STRETCH = 1.75
"""A step with prompts may take this many times as long as one without, where that is more than the target: many replies
take most of the target, and prompts in small parts hold up those that wait to begin."""


class StepTimes(Protocol):
    """Expected times of steps."""

    def expected(self, replies: int, chunk: int, depth: int) -> float:
        """Seconds of a step of `replies` with a chunk of prompts, after `depth` tokens of these."""

    def fitting(self, replies: int, depth: int, target: float, caution: float) -> int:
        """Tokens of prompts in a step that meets the target with `caution` seconds to spare."""

    def observe(self, replies: int, chunk: int, seconds: float, depth: int) -> None:
        """Learn from a step with tokens of prompts."""


class PrefillBudget:
    """A step's time is that of its replies and that of each token of its prompts, which grows with what came before it.

    Both are learned from steps (`LearnedTimes`), and so is how far off they are. Where steps have few sizes, whose
    times are measured before the first request (`MeasuredTimes`), only what contexts add to these is learned.

    n_batch     most tokens in a step
    target      seconds that a step may take while there are replies in it; 0 for no bound
    min_tokens  tokens of prompts that a step takes whatever its time is, so that these always progress
    """

    def __init__(self, n_batch: int, target: float = 0.0, min_tokens: int = TILE) -> None:
        self.n_batch, self.target, self.min_tokens = n_batch, target, min_tokens
        self.measured = MeasuredTimes(min_tokens)
        self.forget()

    def forget(self) -> None:
        """Forget all steps, as after the first ones, which take longer than others."""
        self._learned = LearnedTimes(self.min_tokens)
        self.measured.forget()
        self._error, self._compared = 0.0, False  # seconds; and whether steps beside replies were seen

    @property
    def _times(self) -> StepTimes:
        return self.measured if self.measured else self._learned

    def tokens(self, replies: int, depth: int = 0, part: float | None = None) -> int:
        """Tokens of prompts for a step of `replies`, after `depth` tokens of a prompt.

        `part`: it is to take this part of the target, without replies too.
        """
        room = max(self.n_batch - replies, 0)
        if not self.target or not (replies or part):
            return room
        target = self.target * (part or 1.0)
        fitting = self._times.fitting(max(replies, 1), depth, target, CAUTION * self._error)
        return min(fitting if replies else max(fitting, self.min_tokens), room)

    def seconds(self, replies: int) -> float:
        """Expected seconds of a step of `replies` alone."""
        return self._learned.replies.at(replies)

    def observe_more(self, replies: int, seconds: float) -> None:
        """Learn from a step of `replies` that had further tokens: one without these takes no longer."""
        if seconds < self.seconds(replies):
            self._learned.replies.add(replies, seconds)

    def observe(self, replies: int, chunk: int, seconds: float, depth: int = 0) -> None:
        """Learn from a step of `replies` with a chunk of prompts, after `depth` tokens of these on average."""
        if not chunk:
            self._learned.replies.add(replies, seconds)
        elif chunk >= min(self.min_tokens, TILE):
            if replies and self._compared:
                self._error += SHARE * (abs(seconds - self._times.expected(replies, chunk, depth)) - self._error)
            self._compared = self._compared or bool(replies or self.measured)
            self._times.observe(replies, chunk, seconds, depth)


class LearnedTimes:
    """Times of steps of any size, learned from steps."""

    def __init__(self, min_tokens: int) -> None:
        self._min_tokens = min_tokens
        self.replies = DecodeTimes()
        self._alone, self._beside = RunningLine(), RunningLine()  # seconds of a prompt token, without replies and with
        self._largest = FIRST_GUESS // 2  # tokens of prompts beside replies so far; no step has over twice as many

    def _token(self, depth: int) -> float | None:
        """Seconds of a token of prompts; None where none was seen."""
        line = self._beside if self._beside.known else self._alone
        return line.at(depth) if line.known else None

    def expected(self, replies: int, chunk: int, depth: int) -> float:
        return self.replies.at(replies) + chunk * (self._token(depth) or 0.0)

    def fitting(self, replies: int, depth: int, target: float, caution: float) -> int:
        """As many as there is time for; none in the first step of about this size, to see how long it takes alone."""
        if self.replies.lacks(replies):
            return 0
        alone, token = self.replies.at(replies), self._token(depth)
        left = max(max(target, STRETCH * alone) - caution, target / 2) - alone
        wanted = FIRST_GUESS if token is None else int(max(left, 0.0) / token)
        wanted = min(wanted, TILE if alone >= target else 2 * self._largest)
        return max(wanted - wanted % (TILE if wanted >= TILE else SMALL_TILE), self._min_tokens)

    def observe(self, replies: int, chunk: int, seconds: float, depth: int) -> None:
        if replies:
            self._largest = max(self._largest, chunk)
        line = self._beside if replies else self._alone
        line.add(depth, max(seconds - self.replies.at(replies), 0.1 * seconds) / chunk)


class DecodeTimes:
    """Seconds of steps of replies alone, as they were lately for about this many of them."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}  # by the number in bits: replies, and seconds
        self._count = Counter[int]()

    def add(self, replies: int, seconds: float) -> None:
        size = replies.bit_length()
        n, before = self._seen.get(size, (replies, seconds))
        self._count[size] += 1
        first = self._count[size] <= FIRST_MEASURED
        seconds = min(before, seconds) if first else before + SHARE * (seconds - before)
        self._seen[size] = n + SHARE * (replies - n), seconds

    def lacks(self, replies: int) -> bool:
        """Whether steps of about this size were never seen, but others were."""
        return bool(self._seen) and replies.bit_length() not in self._seen

    def at(self, replies: int) -> float:
        """Of a step of `replies`: interpolated between those seen, and extrapolated; 0 where none were."""
        if not self._seen:
            return 0.0
        numbers, seconds = zip(*sorted(self._seen.values()), strict=True)
        found = float(np.interp(replies, numbers, seconds))
        beyond = max(replies - numbers[-1], 0.0)
        if beyond and len(numbers) > 1:
            found += beyond * max(seconds[-1] - seconds[-2], 0.0) / (numbers[-1] - numbers[-2])
        return found


class MeasuredTimes:
    """Seconds of steps of few sizes, their contexts empty: by replies, and by tokens of prompts beside them.

    What contexts and the host add to these is learned.
    """

    def __init__(self, min_tokens: int) -> None:
        self._min_tokens = min_tokens
        self._seconds: dict[int, dict[int, float]] = {}
        self.forget()

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def forget(self) -> None:
        """Know nothing of contexts; what was measured stays."""
        self._more = RunningLine()

    def add(self, replies: int, prompts: int, seconds: float) -> None:
        """Take the time of a step."""
        self._seconds.setdefault(replies, {})[prompts] = seconds

    def expected(self, replies: int, chunk: int, depth: int) -> float:
        return self._measured_seconds(replies, chunk) + (self._more.at(depth) if self._more.known else 0.0)

    def fitting(self, replies: int, depth: int, target: float, caution: float) -> int:
        """The largest of the sizes that meets the target, or takes hardly longer than the smallest."""
        longest = max(target - caution, target / 2, FREE * self.expected(replies, self._min_tokens, depth))
        sizes = self._seconds[_next(self._seconds, replies)]
        return max(n for n in sizes if self.expected(replies, n, depth) <= longest)

    def observe(self, replies: int, chunk: int, seconds: float, depth: int) -> None:
        self._more.add(depth, max(seconds - self._measured_seconds(replies, chunk), 0.0))

    def _measured_seconds(self, replies: int, prompts: int) -> float:
        """Of a step of this many replies and tokens of prompts, or the next larger one."""
        times = self._seconds[_next(self._seconds, replies)]
        return times[_next(times, prompts)]


def _next(sizes: Collection[int], n: int) -> int:
    """The smallest size that is not below n, or the largest."""
    return min((size for size in sizes if size >= n), default=max(sizes))


class RunningLine:
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
