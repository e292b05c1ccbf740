"""Sizes of steps with drafts: few, as each is bound first."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.runtime.speculation import step_sizes
from octavo.runtime.speculation.step_sizes import AT_ONCE, KEPT, SHARE, StepSizes

STEP, BIND = 0.01, 0.05


def test_drafts_are_cut_to_sizes_that_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_sizes, "AT_ONCE", 2)
    sizes = StepSizes()
    for lengths in ([3, 0], [2, 2]):
        assert sizes.fitted(4, lengths, STEP) == lengths
        assert not sizes.add(4, lengths, STEP + BIND, STEP)
    assert sizes.add(4, [3, 0], STEP, STEP)
    assert sizes.fitted(4, [3, 3], STEP) == [2, 2]
    assert sizes.fitted(4, [1, 5], STEP) == [1, 3]
    assert sizes.fitted(4, [0, 5], STEP) == [0, 3]
    assert sizes.fitted(4, [1, 1], STEP) == [0, 0]
    assert sizes.fitted(4, [0, 0], STEP) == [0, 0]
    assert sizes.fitted(3, [7, 7, 7], STEP) == [7, 7, 7], "another number of replies"


def test_what_binding_takes_is_a_small_share() -> None:
    rng, sizes = np.random.default_rng(0), StepSizes()
    bound, steps, seen = 0, 12_000, set()
    for _ in range(steps):
        lengths = sizes.fitted(8, rng.integers(0, 8, 8).tolist(), STEP)
        size = sum(n > 0 for n in lengths), sum(lengths)
        if size[0]:
            new = not sizes.add(8, lengths, STEP + BIND * (size not in seen), STEP)
            bound += new
            seen.add(size)
    assert bound > AT_ONCE
    assert bound * BIND < (AT_ONCE + 1) * BIND + 2 * SHARE * steps * STEP
    assert len(sizes._bound) <= KEPT
