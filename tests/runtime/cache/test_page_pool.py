"""The page pool: pages go to sequences and come back, and none has two owners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.errors import ContextFullError
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import PagePool, Sequence, rows


def filled(pool: PagePool, length: int) -> Sequence:
    sequence = Sequence()
    pool.grow(sequence, length)
    sequence.tokens = list(range(length))
    return sequence


@pytest.mark.parametrize(
    ("length", "pages"), [(0, 0), (1, 1), (PAGE_SIZE, 1), (PAGE_SIZE + 1, 2), (3 * PAGE_SIZE - 1, 3)]
)
def test_grow_takes_the_pages_that_a_length_needs(length: int, pages: int) -> None:
    pool = PagePool(4)
    sequence = filled(pool, length)
    assert sequence.pages == list(range(pages))
    assert pool.free == 4 - pages
    pool.grow(sequence, length)
    assert pool.free == 4 - pages, "the same length again takes nothing"


def test_a_large_pool_costs_nothing() -> None:
    pool = PagePool(1 << 60)
    assert filled(pool, 2 * PAGE_SIZE).pages == [0, 1]
    assert pool.free == (1 << 60) - 2


def test_exhaustion_takes_nothing() -> None:
    pool = PagePool(3)
    first, second = filled(pool, PAGE_SIZE), filled(pool, PAGE_SIZE)
    with pytest.raises(ContextFullError, match=r"128 more tokens needed, room for 64"):
        pool.grow(second, 3 * PAGE_SIZE)
    assert (first.pages, second.pages, pool.free) == ([0], [1], 1)
    pool.grow(second, 2 * PAGE_SIZE)
    assert second.pages == [1, 2]


def test_shrink_gives_back_the_emptied_pages_only() -> None:
    pool = PagePool(4)
    sequence = filled(pool, 4 * PAGE_SIZE)
    pool.shrink(sequence, PAGE_SIZE + 1)
    assert (sequence.pages, len(sequence), pool.free) == ([0, 1], PAGE_SIZE + 1, 2)
    pool.shrink(sequence, 10 * PAGE_SIZE)
    assert (sequence.pages, len(sequence)) == ([0, 1], PAGE_SIZE + 1), "a longer length forgets nothing"
    pool.release(sequence)
    assert (sequence.pages, len(sequence), pool.free) == ([], 0, 4)


def test_rows_follow_the_pages() -> None:
    sequence = Sequence(pages=[5, 2])
    got = rows(sequence.pages, PAGE_SIZE - 2, PAGE_SIZE + 2)
    np.testing.assert_array_equal(got, [6 * PAGE_SIZE - 2, 6 * PAGE_SIZE - 1, 2 * PAGE_SIZE, 2 * PAGE_SIZE + 1])


class Pool(RuleBasedStateMachine):
    """Any order of growing, shrinking and releasing; a model of it is each sequence's length."""

    N_PAGES = 6

    @initialize(count=st.integers(1, 4))
    def start(self, count: int) -> None:
        self.pool = PagePool(self.N_PAGES)
        self.sequences = [Sequence() for _ in range(count)]

    @rule(which=st.integers(0, 3), more=st.integers(0, 3 * PAGE_SIZE))
    def grow(self, which: int, more: int) -> None:
        sequence = self.sequences[which % len(self.sequences)]
        length, before = len(sequence) + more, (list(sequence.pages), self.pool.free)
        needed = -(-length // PAGE_SIZE) - len(sequence.pages)
        if needed > self.pool.free:
            with pytest.raises(ContextFullError):
                self.pool.grow(sequence, length)
            assert (sequence.pages, self.pool.free) == before
        else:
            self.pool.grow(sequence, length)
            sequence.tokens += [0] * more

    @rule(which=st.integers(0, 3), length=st.integers(0, 4 * PAGE_SIZE))
    def shrink(self, which: int, length: int) -> None:
        sequence = self.sequences[which % len(self.sequences)]
        kept = sequence.pages[: -(-length // PAGE_SIZE)]
        self.pool.shrink(sequence, length)
        assert sequence.pages == kept
        assert len(sequence) <= length

    @rule(which=st.integers(0, 3))
    def release(self, which: int) -> None:
        self.pool.release(self.sequences[which % len(self.sequences)])

    @invariant()
    def every_page_has_one_owner(self) -> None:
        if not hasattr(self, "pool"):
            return
        owned = [page for s in self.sequences for page in s.pages]
        assert len(owned) == len(set(owned))
        assert set(owned) <= set(range(self.N_PAGES))
        assert len(owned) + self.pool.free == self.N_PAGES

    @invariant()
    def pages_cover_the_tokens(self) -> None:
        for s in getattr(self, "sequences", ()):
            assert len(s.pages) == -(-len(s) // PAGE_SIZE)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
