"""Prefault: memory of the KV cache that is touched before steps write to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.formats.spec import U8, AnyArray
from octavo.graph.node import PAGE_SIZE
from octavo.jit.clock import clock

AHEAD = 16
"""Pages beyond those handed out: as many sequences may get one in the same step."""
SHARE = 1 / 16
"""The share of a step's time that touching memory may add to it."""
PART, STRIDE = 1 << 21, 1 << 12
"""Bytes that are touched at once, a large page of the system's, and bytes of a small one."""


class PagePrefault:
    """Has the system give memory for pages of a cache in the host's memory, a little after each step.

    Untouched memory is cleared when it is first written, a large page in each layer at once: the step that begins new
    pages would take several times as long as others.
    """

    def __init__(self, n_pages: int, caches: Sequence[AnyArray]) -> None:
        self._n_pages, self._reached = n_pages, 0
        flat = [c.reshape(-1).view(np.uint8) for c in caches if c.shape[0] == n_pages * PAGE_SIZE]
        self._caches: list[U8] = flat
        self._touched = [0] * len(flat)

    def touch(self, handed_out: int, seconds: float) -> int:
        """Touch pages after the first `handed_out` ones, and stop some time after `seconds`; bytes of them."""
        stop = min(handed_out + AHEAD, self._n_pages)
        if stop <= self._reached:
            return 0
        end, total = clock() + seconds, 0
        for i, cache in enumerate(self._caches):
            of_page = len(cache) // self._n_pages
            at, last = max(self._touched[i], handed_out * of_page), stop * of_page
            while at < last:
                if total and clock() > end:
                    return total
                part = cache[at : min(at + PART, last)]
                part[::STRIDE] |= 0
                self._touched[i] = at = at + len(part)
                total += len(part)
        self._reached = stop
        return total
