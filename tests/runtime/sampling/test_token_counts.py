"""Penalties are those of all tokens counted anew, and a token costs the same however long its reply is."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

from octavo.runtime.sampling.processors import LogitsProcessor, RepeatPenalty, ReplyPenalties, adjustments_of
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.sampling.token_counts import CountedText, CountedWindow
from octavo.runtime.scheduler.request import Request
from octavo.runtime.speculation.drafted_request import after_draft

N_PROMPT = 5
KINDS: list[LogitsProcessor] = [
    *(RepeatPenalty(1.5, n) for n in (0, 1, 3, 20, 1 << 20)), ReplyPenalties(0.5, 0.25, N_PROMPT),
]


def expected(adjuster: LogitsProcessor, tokens: list[int]) -> dict[int, tuple[float, float]]:
    if isinstance(adjuster, RepeatPenalty):
        return dict.fromkeys(tokens[max(len(tokens) - adjuster.last_n, 0) :], (1.5, 0.0))
    return {t: (1.0, -(0.5 + 0.25 * n)) for t, n in Counter(tokens[N_PROMPT:]).items()}


def found(adjusters: list[LogitsProcessor], texts: list[CountedText]) -> list[dict[int, tuple[float, float]]]:
    made = adjustments_of([(a,) for a in adjusters], texts)
    return [{i: (s, a) for i, s, a in zip(c.ids.tolist(), c.scale.tolist(), c.add.tolist(), strict=True)} for c in made]


def test_changes_are_those_of_all_tokens_counted_anew() -> None:
    rng = random.Random(1)
    for _ in range(50):
        texts = [CountedText(rng.choices(range(12), k=rng.randrange(9))) for _ in KINDS]
        for _ in range(30):
            kinds, now = list(KINDS), list(texts)
            for kind, text in zip(KINDS, texts, strict=True):
                for n in range(1, rng.randrange(5)):  # drafts, which leave nothing
                    kinds.append(kind)
                    now.append(CountedText([*text, *rng.choices(range(12), k=n)], base=text))
            want = [expected(kind, text) for kind, text in zip(kinds, now, strict=True)]
            assert found(kinds, now) == want
            for text in texts:
                text.extend(rng.choices(range(12), k=rng.randrange(3)))


@pytest.mark.parametrize("kind", [RepeatPenalty(1.5, 64), RepeatPenalty(1.5, 1 << 20), ReplyPenalties(1, 1, N_PROMPT)])
def test_a_token_costs_the_same_in_a_long_reply(kind: LogitsProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = 0

    def counting(method: Callable[..., None]) -> Callable[..., None]:
        def counted(window: CountedWindow, tokens: list[int]) -> None:
            nonlocal moved
            moved += len(tokens)
            method(window, tokens)

        return counted

    for name in ("_add", "_remove"):
        monkeypatch.setattr(CountedWindow, name, counting(getattr(CountedWindow, name)))

    def work(n: int) -> tuple[int, int]:
        """Tokens looked at, and calls made, for one token and a draft of three in a reply of `n`."""
        nonlocal moved
        text, calls = CountedText(i % 50 for i in range(n)), 0
        adjustments_of([(kind,)], [text])
        text.append(7)
        moved = 0

        def called(frame: FrameType, event: str, arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        drafts = [CountedText([*text, *[1, 2, 3][:k]], base=text) for k in (1, 2, 3)]
        sys.setprofile(called)
        try:
            made = adjustments_of([(kind,)] * 4, [text, *drafts])
        finally:
            sys.setprofile(None)
        assert all(np.unique(c.ids).size == c.ids.size for c in made)
        return moved, calls

    short, long = work(1000), work(16000)
    assert long[0] <= 1.5 * short[0]
    assert long[1] <= 1.5 * short[1]


def test_drafts_are_counted_on_from_their_request() -> None:
    request = Request([1, 2, 3], make_sampler(SamplingParams(presence_penalty=1)))
    assert after_draft(request, [4]).tokens == [1, 2, 3, 4]
    assert after_draft(request, [4]).tokens.base is request.tokens
