"""How long drafts pay to be: by what a step with their tokens takes here, and how many of these are accepted.

A draft of n tokens, of which each is right with probability p if those before it are, brings p + p^2 + ... + p^n tokens
on average beside the one that a step brings anyway. The lengths are those with the most tokens a second, none included.
Both sides are measured as the server runs, so that nothing has to be set by hand (Leviathan et al., arXiv 2211.17192,
section 3.5, choose one length from a fixed ratio of costs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

SHARE, FIRST_MEASURED, MOST_UNUSUAL = 0.2, 3, 2.0
"""The weight of a new measurement in a running mean; how many are seen before there is one, the least of which counts;
and how many times the mean one counts at most: others may have the machine for a while."""
LEAST_GAIN = 0.02
"""Steps with drafts are to have so much more tokens a second than those without: less is not worth an error."""
FIRST_TOKENS = 3
"""The most tokens of a draft while nothing is known of what they take."""
PLAIN_EVERY = 32
"""Steps with drafts of which one goes without, to see what that takes now; at first the 2nd, 4th, 8th and
16th too, as first measurements are the least exact."""
NOTICED = 0.05
"""By as much a rate has to rise above those that drafts did not pay with, to be looked at before it is time."""
FIRST_BACKOFF, MAX_BACKOFF = 16, 512
"""Steps without a draft before one is tried again, where drafts did not pay; twice as many each time."""


class StepCosts:
    """What tokens of drafts make of the time of a step of as many replies: times as long as without them."""

    def __init__(self) -> None:
        self._factors: dict[int, dict[int, float]] = {}
        self._seen = Counter[tuple[int, int]]()

    def add(self, replies: int, tokens: int, factor: float) -> None:
        """Learn from a step with this many tokens of drafts."""
        known, size = self._factors.setdefault(_class(replies), {}), (_class(replies), tokens)
        before = known.get(tokens, factor)
        self._seen[size] += 1
        if self._seen[size] <= FIRST_MEASURED:
            known[tokens] = max(min(before, factor), 1.0)
        else:
            known[tokens] = max(before + SHARE * (min(factor, MOST_UNUSUAL * before) - before), 1.0)

    def known(self, replies: int) -> int:
        """The most tokens of drafts of which it is known; 0 for none."""
        return max(self._factors.get(_class(replies), {}), default=0)

    def factor(self, replies: int, tokens: int) -> float:
        """Expected; along lines between what is known, and on along the last one."""
        points = [(0, 1.0), *sorted(self._factors.get(_class(replies), {}).items())]
        if len(points) == 1:
            return 1.0
        line = next((pair for pair in pairwise(points) if tokens <= pair[1][0]), (points[0], points[-1]))
        (x, y), (other_x, other_y) = line
        return max(y + (other_y - y) * (tokens - x) / (other_x - x), 1.0)


def _class(replies: int) -> int:
    """Numbers of replies that are held to be alike: each up to 4, then powers of two."""
    return replies if replies <= 4 else 1 << (replies - 1).bit_length()


class DraftLengths:
    """Chooses the lengths of drafts.

    most     tokens of a draft
    seconds  expected of a step of a number of replies without drafts; 0 where that is not known
    """

    def __init__(self, most: int, seconds: Callable[[int], float]) -> None:
        self.most, self.seconds = most, seconds
        self.costs = StepCosts()
        self._seen: dict[tuple[int, int], int] = {}
        self._skipped: dict[int, int] = {}
        self._backoff: dict[int, int] = {}
        self._drafted: dict[int, int] = {}
        self._declined: dict[int, float] = {}

    def choose(
        self, replies: int, rates: Sequence[float], most: Sequence[int], *, room: int,
        making: Callable[[int], float] | None = None, taken: Sequence[float] = (), some: bool = False,
    ) -> list[int]:
        """For each of some of the `replies` the length of its draft, 0 for none; not for all of them if `some`.

        rates         how likely a token is to be accepted, if those before it are
        most          the most tokens of each draft
        room          the most tokens of drafts in the step
        making        seconds to make drafts whose longest has this many tokens; None where it takes none
        taken         how likely each token is to be accepted that the step has already
        """
        known, base = self.costs.known(replies), self.seconds(replies)
        if not base:  # a step without drafts comes first
            return [0] * len(rates)
        room = min(room, 2 * known if known else FIRST_TOKENS * max(1, min(len(rates), 2)))
        gains = sorted(
            ((rate**n, n, i) for i, rate in enumerate(rates) for n in range(1, min(most[i], self.most) + 1)),
            key=lambda gain: (-gain[0], gain[1]),
        )
        before = replies + sum(taken)
        best = 0.0 if some else (1 + LEAST_GAIN) * before / self.costs.factor(replies, len(taken))
        chosen = [0] * len(rates)
        for longest in range(1, max(most, default=0) + 1) if making else [self.most]:
            made = making(longest) / base if making else 0.0
            tokens, expected = len(taken), before
            lengths = [0] * len(rates)
            for gain, n, i in gains:
                if n > longest or tokens == room:
                    continue
                tokens, expected, lengths[i] = tokens + 1, expected + gain, n
                speed = expected / (self.costs.factor(replies, tokens) + made)
                if speed > best:
                    best, chosen = speed, list(lengths)
        return chosen

    def plan(self, replies: int, rates: Sequence[float], most: Sequence[int], **more: Any) -> list[int]:
        """The lengths of `choose` where there are to be drafts; where these are tried again, those that lose least."""
        if not rates:
            return []
        size, best = _class(replies), max(rates)
        if self.rests(replies) and best <= self._declined.get(size, 0.0):
            self.pays(replies, ())
            return [0] * len(rates)
        lengths = self.choose(replies, rates, most, **more)
        self._declined[size] = 0.0 if any(lengths) else best + NOTICED
        if not self.pays(replies, lengths):
            return [0] * len(rates)
        return lengths if any(lengths) else self.choose(replies, rates, most, some=True, **more)

    def rests(self, replies: int) -> bool:
        """Whether drafts did not pay lately, and it is not yet time to try one again."""
        size = _class(replies)
        return self._skipped.get(size, 0) > 0 and self._skipped[size] + 1 < self._backoff.get(size, FIRST_BACKOFF)

    def pays(self, replies: int, lengths: Sequence[int]) -> bool:
        """Whether there are drafts; now and then also where they did not pay lately, to see whether they do again."""
        size = _class(replies)
        if not self.seconds(replies):
            return False
        if any(lengths):
            self._skipped[size], self._backoff[size] = 0, FIRST_BACKOFF
            self._drafted[size] = n = self._drafted.get(size, 0) + 1
            return n % PLAIN_EVERY > 0 and (n == 1 or n > PLAIN_EVERY or n & (n - 1) > 0)
        self._skipped[size] = self._skipped.get(size, 0) + 1
        if self._skipped[size] < self._backoff.get(size, FIRST_BACKOFF):
            return False
        self._skipped[size], self._backoff[size] = 0, min(2 * self._backoff.get(size, FIRST_BACKOFF), MAX_BACKOFF)
        return True

    def try_again(self, replies: int) -> None:
        """Have the next step try, too: there was no draft yet to be verified by this one."""
        size = _class(replies)
        self._skipped[size] = self._backoff.get(size, FIRST_BACKOFF) - 1

    def observe(self, replies: int, tokens: int, seconds: float, unusual: int) -> None:
        """Learn from a step with this many tokens of drafts; the first `unusual` ones of a size take longer."""
        size, base = (replies, tokens), self.seconds(replies)
        self._seen[size] = self._seen.get(size, 0) + 1
        if self._seen[size] > unusual and base:
            self.costs.add(replies, tokens, seconds / base)
