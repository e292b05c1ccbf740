"""Drafts from replies that ended."""

from __future__ import annotations

import numpy as np

from octavo.runtime.speculation.history_drafter import LENGTH, HistoryDrafter


def test_what_came_next() -> None:
    history = HistoryDrafter()
    history.add(range(10), "")
    history.add([1, 2], "")
    assert history.draft([99, 2, 3, 4, 5, 6], 3, "") == [7, 8, 9]
    assert history.draft([2, 3, 4, 5, 6], 2, "") == [7, 8]
    assert history.draft([2, 3, 4, 5, 7], 2, "") == []
    assert history.draft([5, 6, 7, 8, 9], 2, "") == [], "where the reply ended"
    assert history.draft([2, 3], 2, "") == []
    history.add([2, 3, 4, 5, 6, 70], "")
    assert history.draft([2, 3, 4, 5, 6], 2, "") == [70], "the last one counts"


def test_others_replies_are_not_seen() -> None:
    history = HistoryDrafter()
    history.add(range(10), "mine")
    assert history.draft([2, 3, 4, 5, 6], 2, "") == []
    assert history.draft([2, 3, 4, 5, 6], 2, "mine") == [7, 8]


def test_the_oldest_go_first() -> None:
    history, rng = HistoryDrafter(100), np.random.default_rng(0)
    texts = [rng.integers(0, 4, size=int(rng.integers(0, 40))).tolist() for _ in range(50)]
    for i, text in enumerate(texts):
        history.add(text, "")
        kept = [t for t in texts[: i + 1] if len(t) > LENGTH]
        while sum(map(len, kept)) > 100:
            del kept[0]
        known = {tuple(t[end - LENGTH : end]): t[end : end + 2] for t in kept for end in range(LENGTH, len(t))}
        assert len(history._ends) == len(known)
        for last, after in known.items():
            assert history.draft(last, 2, "") == after
    history.add([9] * 500, "")
    assert history.draft([9] * LENGTH, 3, "") == [9]
