"""What the prefix cache does for one look-up, page or eviction does not grow with what it holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.prefix_tree import PrefixTree
from tests.runtime.scheduler.work import Token, calls

FEW, MANY = 64, 1024


def numbered(i: int) -> list[int]:
    """A page of tokens and one more; all such begin with eight that are alike."""
    return [Token(t) for t in (*[1] * 8, i * 7 % 1031, *[i] * (PAGE_SIZE - 8))]


class Cache:
    def __init__(self, n_pages: int) -> None:
        self.pool = PagePool(n_pages)
        self.tree = PrefixTree(self.pool)

    def begun(self, tokens: list[int]) -> Sequence:
        sequence = Sequence()
        self.pool.grow(sequence, len(tokens))
        sequence.tokens += tokens
        return sequence


def siblings(n: int, *, ends: bool) -> Iterator[int]:
    """Calls to look up, publish and evict where `n` pages begin alike; with `ends` these are not full."""
    cache, length = Cache(n + 1), PAGE_SIZE - ends
    for i in range(n):
        sequence = cache.begun(numbered(i)[:length])
        cache.tree.insert(sequence, tail=True)
        cache.pool.release(sequence)
    assert len(cache.tree) == n
    yield calls(lambda: cache.tree.match_length(numbered(n // 2)))
    yield calls(lambda: cache.tree.match_length(numbered(n)))
    sequence = cache.begun(numbered(n)[:length])
    yield calls(lambda: cache.tree.insert(sequence, tail=True))
    yield calls(cache.tree.evict)


@pytest.mark.parametrize("ends", [False, True])
def test_siblings_are_not_looked_at_one_by_one(ends: bool) -> None:
    for few, many in zip(siblings(FEW, ends=ends), siblings(MANY, ends=ends), strict=True):
        assert many <= 1.5 * few


def held(n: int) -> Iterator[int]:
    """Calls to evict, and to give up a page that is written, where sequences hold `n` pages that were used before."""
    cache = Cache(n + 2)
    for i in range(n + 2):
        sequence = cache.begun([i] * (PAGE_SIZE if i <= n else 8))
        cache.tree.insert(sequence, tail=True)
        if i == n:
            cache.pool.release(sequence)
    assert (cache.pool.empty, cache.pool.cached) == (0, 1)
    yield calls(lambda: cache.pool.grow(Sequence(), 1))
    assert cache.pool.free == 0
    yield calls(lambda: cache.pool.grow(sequence, 9))
    assert len(cache.tree) == n


def test_held_pages_are_not_passed_over_again() -> None:
    for few, many in zip(held(FEW), held(MANY), strict=True):
        assert many <= 1.5 * few


def lengthened(n: int) -> int:
    """Calls to publish the page after `n` others of a sequence."""
    cache, sequence = Cache(n + 1), Sequence()
    for _ in range(n + 1):
        cache.pool.grow(sequence, len(sequence) + PAGE_SIZE)
        sequence.tokens += range(PAGE_SIZE)
        made = calls(lambda: cache.tree.insert(sequence))
    assert len(cache.tree) == n + 1
    return made


def test_a_page_is_published_without_those_before_it() -> None:
    assert lengthened(MANY) <= 1.5 * lengthened(FEW)
