"""States that are kept: what is found is the state after just these tokens, whatever was kept, copied and dropped."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.errors import CacheFullError
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.prefix_tree import PrefixNode, PrefixTree
from octavo.runtime.cache.state_pool import StatePool


class Kept(RuleBasedStateMachine):
    """Sequences of few different tokens in few pages and slots. A slot holds the tokens that its state has seen."""

    N_PAGES, N_SLOTS = 8, 5

    @initialize()
    def start(self) -> None:
        self.states = StatePool(self.N_SLOTS)
        self.pool = PagePool(self.N_PAGES, states=self.states)
        self.tree = PrefixTree(self.pool)
        self.slots: list[list[int]] = [[-1]] * self.N_SLOTS
        self.pool.copier.copy_with(self.copy_page)
        self.states.copier.copy_with(self.copy_state)
        self.sequences: list[Sequence] = []

    def copy_page(self, target: int, source: int) -> None:
        assert target != source

    def copy_state(self, target: int, source: int) -> None:
        self.slots[target] = list(self.slots[source])

    @rule(first=st.integers(0, 1), pieces=st.lists(st.integers(1, 70), min_size=1, max_size=3))
    def begin(self, first: int, pieces: list[int]) -> None:
        prompt = [t for i, n in enumerate(pieces) for t in [first + i] * n]
        kept = [kept for kept in self.states._kept if self.slots[kept.slot] == prompt[: kept.length]]
        longest = max((one.length for one in kept if one.length < len(prompt)), default=0)
        sequence = self.tree.match_prefix(prompt)
        assert len(sequence) == longest
        assert sequence.tokens == prompt[: len(sequence)]
        assert len(sequence) == self.tree.match_length(prompt) < len(prompt)
        assert (sequence.origin is None) == (not len(sequence))
        self.sequences.append(sequence)
        self.append(sequence, prompt[len(sequence) :])

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9), token=st.integers(0, 2), count=st.integers(1, 80))
    def lengthen(self, which: int, token: int, count: int) -> None:
        self.append(self.chosen(which), [token] * count)

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9))
    def keep(self, which: int) -> None:
        self.tree.insert_state(self.chosen(which))

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9), give=st.booleans())
    def end(self, which: int, give: bool) -> None:
        sequence = self.chosen(which)
        self.sequences.remove(sequence)
        if give:
            self.tree.insert_state(sequence, give=True)
        self.pool.release(sequence)

    @precondition(lambda self: getattr(self, "sequences", None) and self.states.free)
    @rule(which=st.integers(0, 9))
    def fork(self, which: int) -> None:
        self.sequences.append(self.pool.fork(self.chosen(which)))

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(which=st.integers(0, 9), length=st.integers(0, 150))
    def cut(self, which: int, length: int) -> None:
        self.pool.shrink(self.chosen(which), length)

    @precondition(lambda self: hasattr(self, "tree"))
    @rule()
    def clear(self) -> None:
        self.tree.clear()
        assert not self.states.kept

    def chosen(self, which: int) -> Sequence:
        return self.sequences[which % len(self.sequences)]

    def append(self, sequence: Sequence, tokens: list[int]) -> None:
        """As an engine does it, which computes a state again that has seen something else."""
        try:
            self.pool.grow(sequence, len(sequence) + len(tokens))
        except CacheFullError:
            return
        assert sequence.slot is not None
        if sequence.seen != len(sequence):
            self.slots[sequence.slot] = list(sequence.tokens)
        elif len(sequence):
            assert self.slots[sequence.slot] == sequence.tokens
        sequence.tokens += tokens
        self.slots[sequence.slot], sequence.seen = list(sequence.tokens), len(sequence)

    @invariant()
    def every_slot_is_free_or_kept_or_held(self) -> None:
        if hasattr(self, "pool"):
            held = [s.slot for s in self.sequences if s.slot is not None]
            assert len(held) == len(set(held)) == self.N_SLOTS - self.states.free

    @invariant()
    def kept_states_have_seen_their_tokens(self) -> None:
        if hasattr(self, "tree"):
            found = sum(self.checked(root, []) for root in self.tree._roots.values())
            assert found == self.states.kept

    def checked(self, node: PrefixNode, before: list[int]) -> int:
        path = [*before, *node.tokens]
        for after, kept in node.states.items():
            assert self.slots[kept.slot] == [*path, *after]
            assert kept.length == len(path) + len(after)
            assert any(tokens[: len(after)] == after for tokens in node.children)
        return len(node.states) + sum(self.checked(child, path) for child in node.children.values())


TestKept = Kept.TestCase
TestKept.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
