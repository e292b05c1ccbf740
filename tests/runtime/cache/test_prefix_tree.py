"""The prefix cache: what is found is what was computed, whatever was written, shared, copied and evicted meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.errors import CacheFullError, ContextFullError
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.prefix_tree import PrefixTree
from octavo.runtime.cache.window_pool import pages_for


class Memory:
    """Pages that hold the tokens that were written to them."""

    def __init__(self, pool: PagePool) -> None:
        self.pool, self.tree = pool, PrefixTree(pool)
        self.pages = np.full((pool.n_pages, PAGE_SIZE), -1)
        self.copies = 0
        pool.copier.copy_with(self.copy)

    def copy(self, target: int, source: int) -> None:
        self.pages[target] = self.pages[source]
        self.copies += 1

    def append(self, sequence: Sequence, tokens: list[int]) -> None:
        self.pool.grow(sequence, len(sequence) + len(tokens))
        for token in tokens:
            at = len(sequence)
            self.pages[sequence.pages[at // PAGE_SIZE], at % PAGE_SIZE] = token
            sequence.tokens.append(token)

    def read(self, sequence: Sequence) -> list[int]:
        found: list[int] = self.pages[sequence.pages[: pages_for(len(sequence))]].reshape(-1)[: len(sequence)].tolist()
        return found

    def computed(self, tokens: list[int], *, publish: bool = True) -> Sequence:
        """A sequence of all tokens, of which those are computed that are not found."""
        sequence = self.tree.match_prefix(tokens)
        self.append(sequence, tokens[len(sequence) :])
        if publish:
            self.tree.insert(sequence, tail=True)
        return sequence


@pytest.fixture
def memory() -> Memory:
    return Memory(PagePool(6))


PROMPT = list(range(100, 100 + 2 * PAGE_SIZE + 10))


def test_a_prompt_is_found_but_for_its_last_token(memory: Memory) -> None:
    first = memory.computed(PROMPT)
    assert memory.tree.match_length(PROMPT) == len(PROMPT) - 1
    again = memory.tree.match_prefix(PROMPT)
    assert (again.tokens, again.pages) == (PROMPT[:-1], first.pages)
    assert memory.tree.match_length([*PROMPT, 1, 2]) == len(PROMPT)
    assert memory.tree.match_length([7, *PROMPT]) == 0
    assert memory.tree.match_length(PROMPT[:1]) == memory.tree.match_length([]) == 0


@pytest.mark.parametrize("shared", [1, 63, 64, 65, 100, 130])
def test_a_hit_goes_to_the_token(memory: Memory, shared: int) -> None:
    memory.pool.release(memory.computed(PROMPT))
    other = [*PROMPT[:shared], 7, 8, 9]
    sequence = memory.tree.match_prefix(other)
    assert sequence.tokens == PROMPT[:shared]
    memory.append(sequence, other[shared:])
    assert memory.read(sequence) == other
    assert memory.copies == (shared % PAGE_SIZE > 0), "whole pages are shared as they are"
    assert memory.read(memory.tree.match_prefix(PROMPT)) == PROMPT[:-1]


def test_spaces_are_apart(memory: Memory) -> None:
    sequence = memory.computed(PROMPT)
    memory.tree.insert(sequence, cache_salt="a", tail=True)
    assert [memory.tree.match_length(PROMPT, space) for space in ("", "a", "b")] == [len(PROMPT) - 1] * 2 + [0]


def test_a_tail_becomes_what_comes_after_it(memory: Memory) -> None:
    first = memory.computed(PROMPT[:70])
    assert (len(memory.tree), memory.pool.empty) == (2, 4)
    memory.append(first, PROMPT[70:])
    assert memory.copies == 1, "what others may find is not written to"
    memory.tree.insert(first, tail=True)
    assert (len(memory.tree), memory.pool.held, memory.pool.cached, memory.pool.empty) == (3, 3, 0, 3)
    memory.tree.insert(first, tail=True)
    memory.pool.release(first)
    assert (memory.pool.held, memory.pool.cached, memory.pool.empty) == (0, 3, 3)


def test_who_computed_the_same_holds_the_same_pages(memory: Memory) -> None:
    first, second = (memory.computed(PROMPT, publish=False) for _ in range(2))
    assert memory.pool.held == 6
    memory.tree.insert(first)
    memory.tree.insert(second)
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    assert memory.pool.held == 4


def test_the_page_that_was_not_used_for_longest_goes_first(memory: Memory) -> None:
    prompts = [[n] * (PAGE_SIZE + 1) for n in (1, 2, 3)]
    for prompt in prompts:
        memory.pool.release(memory.computed(prompt))
    memory.pool.release(memory.tree.match_prefix(prompts[0]))
    memory.pool.grow(Sequence(), 3 * PAGE_SIZE)
    assert [memory.tree.match_length(prompt) for prompt in prompts] == [PAGE_SIZE, 0, PAGE_SIZE]


def test_what_is_held_is_not_evicted(memory: Memory) -> None:
    kept = memory.computed(PROMPT)
    other = memory.computed([1] * 3 * PAGE_SIZE)
    with pytest.raises(CacheFullError, match="64 more tokens needed, room for 0"):
        memory.append(kept, [1] * PAGE_SIZE)
    memory.pool.release(other)
    memory.append(kept, [1] * PAGE_SIZE)
    assert memory.read(kept) == PROMPT + [1] * PAGE_SIZE
    assert issubclass(CacheFullError, ContextFullError)


def test_a_full_cache_gives_a_tail_up_in_place_of_copying_it() -> None:
    memory = Memory(PagePool(2))
    sequence = memory.computed(PROMPT[:70])
    memory.append(sequence, [5])
    assert (memory.copies, memory.read(sequence)) == (0, [*PROMPT[:70], 5])
    assert memory.tree.match_length(PROMPT) == PAGE_SIZE


def test_forks_share_pages_until_they_write(memory: Memory) -> None:
    first = memory.computed(PROMPT, publish=False)
    forks = [memory.pool.fork(first) for _ in range(2)]
    assert memory.pool.held == 3
    for i, fork in enumerate(forks):
        assert memory.pool.missing(fork, len(fork) + 1) == 1
        memory.append(fork, [i])
    memory.append(first, [9])
    assert [memory.read(s)[-1] for s in (*forks, first)] == [0, 1, 9]
    assert (memory.copies, memory.pool.held) == (2, 5)
    for s in (*forks, first):
        memory.pool.release(s)
    assert memory.pool.empty == 6


def test_clear_leaves_sequences_their_pages(memory: Memory) -> None:
    sequence = memory.computed(PROMPT)
    memory.pool.release(memory.computed([1, 2]))
    memory.tree.clear()
    assert (len(memory.tree), memory.pool.held, memory.pool.cached, memory.pool.empty) == (0, 3, 0, 3)
    assert memory.read(sequence) == PROMPT


def shared(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def paths(tree: PrefixTree, space: str = "") -> list[list[int]]:
    """All tokens from a root to each node below it."""
    root = tree._roots.get(space)
    found = [] if root is None else [([*root.tokens], root)]
    for path, node in found:  # grows as it goes
        found += [([*path, *child.tokens], child) for child in node.children.values()]
    return [path for path, _ in found]


class Cache(RuleBasedStateMachine):
    """Sequences of few different tokens in a small pool, begun, forked, lengthened, cut, published and released."""

    N_PAGES = 7

    @initialize()
    def start(self) -> None:
        self.memory = Memory(PagePool(self.N_PAGES))
        self.sequences: list[Sequence] = []

    @rule(first=st.integers(0, 2), pieces=st.lists(st.integers(1, 70), min_size=1, max_size=3))
    def begin(self, first: int, pieces: list[int]) -> None:
        prompt = [t for i, n in enumerate(pieces) for t in [first + i] * n]
        found = max((shared(path, prompt[:-1]) for path in paths(self.memory.tree)), default=0)
        sequence = self.memory.tree.match_prefix(prompt)
        assert len(sequence) == found
        assert sequence.tokens == prompt[: len(sequence)]
        assert len(sequence) < len(prompt)
        self._append(sequence, prompt[len(sequence) :])
        self.sequences.append(sequence)

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9), token=st.integers(0, 2), count=st.integers(1, 80))
    def lengthen(self, which: int, token: int, count: int) -> None:
        self._append(self._chosen(which), [token] * count)

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9), tail=st.booleans())
    def publish(self, which: int, tail: bool) -> None:
        self.memory.tree.insert(self._chosen(which), tail=tail)

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9))
    def fork(self, which: int) -> None:
        self.sequences.append(self.memory.pool.fork(self._chosen(which)))

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9), length=st.integers(0, 150))
    def cut(self, which: int, length: int) -> None:
        self.memory.pool.shrink(self._chosen(which), length)

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9))
    def release(self, which: int) -> None:
        sequence = self._chosen(which)
        self.sequences.remove(sequence)
        self.memory.pool.release(sequence)

    def _chosen(self, which: int) -> Sequence:
        return self.sequences[which % len(self.sequences)]

    def _append(self, sequence: Sequence, tokens: list[int]) -> None:
        pool, length = self.memory.pool, len(sequence) + len(tokens)
        before, enough = list(sequence.pages), pool.missing(sequence, length) <= pool.free
        try:
            self.memory.append(sequence, tokens)
            assert enough
        except CacheFullError:
            assert not enough
            assert sequence.pages == before

    @invariant()
    def every_page_is_free_or_cached_or_held(self) -> None:
        if not hasattr(self, "memory"):
            return
        pool, held = self.memory.pool, {page for s in self.sequences for page in s.pages}
        assert pool.held == len(held)
        assert pool.empty + pool.cached + pool.held == self.N_PAGES

    @invariant()
    def nodes_that_nobody_holds_are_let_go_before_those_above(self) -> None:
        if not hasattr(self, "memory"):
            return
        tree, held = self.memory.tree, {page for s in self.sequences for page in s.pages}
        idle = list(tree._evictable)
        assert {node.page for node in idle} == tree._nodes.keys() - held
        for at, node in enumerate(idle):
            assert all(child in idle[:at] for child in node.children.values())
            assert node.above.order == sorted(node.above.children)
            assert node.above.children[node.tokens] is node

    @invariant()
    def pages_hold_what_was_written(self) -> None:
        for sequence in getattr(self, "sequences", ()):
            assert self.memory.read(sequence) == sequence.tokens
        for node in self.memory.tree._nodes.values() if hasattr(self, "memory") else ():
            assert tuple(self.memory.pages[node.page][: len(node.tokens)]) == node.tokens


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
