"""Which sizes steps with drafts may have: each new one has calls bound for it first, which takes as long as some steps.

On the CPU that is 12 ms for the demo model, whose step of one token takes one. So there are few sizes: drafts are cut
to one that is bound, unless another one can be afforded.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

SHARE = 0.005
"""Of the time of steps, what may be spent on new sizes."""
AT_ONCE = 7
"""Sizes for each number of replies that are bound at once: all that one reply's drafts have."""
KEPT = 24
"""Sizes that are taken to be bound still; see `executor.PLANS_KEPT`."""

Size = tuple[int, int, int]
"""Replies, how many of them have drafts, and the tokens of these together."""


class StepSizes:
    """Sizes that are bound, and what may be spent on further ones."""

    def __init__(self) -> None:
        self._bound: OrderedDict[Size, None] = OrderedDict()
        self._tried = Counter[int]()
        self._left = 0.0

    def fitted(self, replies: int, lengths: Sequence[int], seconds: float) -> list[int]:
        """The lengths of drafts, cut to a size that is bound or may be.

        seconds  that a step of the replies takes without drafts
        """
        self._left += SHARE * seconds
        wanted = _size(replies, lengths)
        if not wanted[1] or wanted in self._bound or self._left > 0 or self._tried[replies] < AT_ONCE:
            return list(lengths)
        longest = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        most = [sum(lengths[i] for i in longest[:n]) for n in range(len(lengths) + 1)]
        known = [(t, n) for r, n, t in self._bound if r == replies and n <= wanted[1] and t <= most[n]]
        if not known:
            return [0] * len(lengths)
        tokens, n = max(known)
        found = [0] * len(lengths)
        for i in longest[:n]:
            found[i] = lengths[i]
        while sum(found) > tokens:
            found[max(range(len(found)), key=found.__getitem__)] -= 1
        return found

    def add(self, replies: int, lengths: Sequence[int], seconds: float, usual: float) -> bool:
        """A step had this size, and took `seconds` where `usual` were expected; whether it had been bound."""
        size = _size(replies, lengths)
        known = size in self._bound
        self._bound[size] = None
        self._bound.move_to_end(size)
        if not known:
            self._tried[replies] += 1
            self._left -= max(seconds - usual, 0.0)
            if len(self._bound) > KEPT:
                self._bound.popitem(last=False)
        return known


def _size(replies: int, lengths: Sequence[int]) -> Size:
    return replies, sum(n > 0 for n in lengths), sum(lengths)
