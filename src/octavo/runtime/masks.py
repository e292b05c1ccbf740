"""Masks of several constraints, which are filled on several threads where that pays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from octavo.backends.cores import cores
from octavo.formats.spec import AnyArray
from octavo.runtime.grammar import Matched
from octavo.runtime.request import Constraint
from octavo.runtime.thinking import AfterThinking

FEWEST, MOST_THREADS = 4, 8
"""Masks for which threads are woken, which takes about as long as one; and those threads."""


class Filler:
    """Fills masks, int32 [words], for the constraints of a step."""

    def __init__(self, words: int) -> None:
        self._words = words

    def fill(self, constraints: Sequence[Constraint]) -> list[AnyArray | Exception]:
        """For each constraint its mask, or why it has none."""
        masks = np.zeros((len(constraints), self._words), np.int32)
        matched = {i: m for i, c in enumerate(constraints) if (m := _matched(c)) is not None}
        if len(matched) < FEWEST:
            matched = {}
        else:
            matchers = [(m.matcher, i) for i, m in matched.items()]
            self._executor.unsafe_compute_mask_ptr(matchers, masks.ctypes.data, masks[0].nbytes, len(masks))
        found: list[AnyArray | Exception] = []
        for i, (constraint, mask) in enumerate(zip(constraints, masks, strict=True)):
            try:
                if i in matched:
                    matched[i].require(mask)
                else:
                    constraint.fill(mask)
                found.append(mask)
            except Exception as error:
                found.append(error)
        return found

    @cached_property
    def _executor(self) -> Any:
        from llguidance import LLExecutor

        return LLExecutor(min(cores(), MOST_THREADS))


def _matched(constraint: Constraint) -> Matched | None:
    """What llguidance makes the whole of a constraint's mask with, as far as it does."""
    inner = constraint.answering if isinstance(constraint, AfterThinking) else constraint
    return inner if isinstance(inner, Matched) else None
