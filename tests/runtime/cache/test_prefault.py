"""Memory that is touched before pages of it are handed out."""

from __future__ import annotations

import sys
from mmap import PAGESIZE

import numpy as np
import pytest

from octavo.backends.cpu.device.large_pages import zeroed
from octavo.formats.spec import U8
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.prefault import AHEAD, PART, PagePrefault

N_PAGES, OF_PAGE = 64, PART // 4


def caches() -> list[U8]:
    return [zeroed(N_PAGES * OF_PAGE).reshape(N_PAGES * PAGE_SIZE, 1, -1) for _ in range(2)]


def resident(memory: U8) -> int:
    """Bytes of `memory` that the system has given."""
    first, stop = memory.ctypes.data // PAGESIZE, -(-(memory.ctypes.data + memory.nbytes) // PAGESIZE)
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * first)
        words = np.frombuffer(file.read(8 * (stop - first)), np.uint64)
    return int((words >> np.uint64(63)).sum()) * PAGESIZE  # bit 63: present


def test_pages_to_come_are_touched_once() -> None:
    ahead = PagePrefault(N_PAGES, caches())
    assert ahead.touch(3, 1e9) == 2 * AHEAD * OF_PAGE
    assert ahead.touch(3, 1e9) == 0
    assert ahead.touch(5, 1e9) == 2 * 2 * OF_PAGE
    assert ahead.touch(60, 1e9) == 2 * 4 * OF_PAGE, "what was handed out meanwhile is left out, and there are 64"
    assert ahead.touch(64, 1e9) == 0


def test_one_large_page_is_touched_where_there_is_no_time() -> None:
    ahead, total = PagePrefault(N_PAGES, caches()), 0
    while touched := ahead.touch(0, 0.0):
        assert touched <= PART
        total += touched
    assert total == 2 * AHEAD * OF_PAGE


def test_values_stay_and_caches_of_other_lengths_are_left_alone() -> None:
    cache = np.arange(N_PAGES * PAGE_SIZE * 3, dtype=np.float32).reshape(N_PAGES * PAGE_SIZE, 1, 3)
    before, other = cache.copy(), np.zeros((PAGE_SIZE, 1, 3), np.float16)
    assert PagePrefault(N_PAGES, [cache, other]).touch(0, 1e9) == AHEAD * PAGE_SIZE * 3 * 4
    np.testing.assert_array_equal(cache, before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_system_gives_the_memory() -> None:
    first, second = caches()
    PagePrefault(N_PAGES, [first, second]).touch(0, 1e9)
    assert resident(second) >= AHEAD * OF_PAGE
    assert resident(first) < N_PAGES * OF_PAGE
