"""What a step is to compute: tokens of requests, and which of these get another one."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.scheduler.request import Output, Request


@dataclass(slots=True)
class StepPlan:
    """A step: each request with the tokens that are computed of it. Those of one token come first.

    choosing  requests that a token is chosen for after it, each with the number of its row: its place in `parts`
    ended     what ended before the step
    replies   requests of one token
    chunk     tokens of the others
    """

    parts: tuple[tuple[Request, int], ...]
    choosing: tuple[tuple[Request, int], ...]
    ended: tuple[Output, ...] = ()
    replies: int = field(init=False)
    chunk: int = field(init=False)

    def __post_init__(self) -> None:
        numbers = [n for _, n in self.parts]
        self.replies = numbers.count(1)
        self.chunk = sum(numbers) - self.replies

    @property
    def depth(self) -> int:
        """Tokens before each of these on average, until the step is committed."""
        if not self.chunk:
            return 0
        before = sum(n * (len(r.sequence) + n // 2) for r, n in self.parts if n > 1)
        return before // self.chunk


def feeds_of(plan: StepPlan) -> Seq[tuple[Sequence, Seq[int], bool]]:
    """Of each part its sequence, the tokens to compute, and whether a token is chosen after them."""
    choosing = {i for _, i in plan.choosing}
    return [
        (r.sequence, r.tokens[(at := len(r.sequence.tokens)) : at + n], i in choosing)
        for i, (r, n) in enumerate(plan.parts)
    ]
