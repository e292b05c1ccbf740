"""Prefix cache: pages of sequences in a radix tree, for later sequences that begin with the same tokens.

A node is a page and the tokens in it; its children are pages that came after it. Tokens are compared, not hashes of
them, so a page is never taken for another one. A sequence may begin with a part of a page: the pool copies that page
when the sequence diverges. No child's tokens begin with another child's.

A sequence that locks a node's page locks those above it, too, and releases them later. So the evictable node that was
released first is a leaf: nodes are evicted in that order, least recently used first.

Where layers have states, a sequence can begin only where one is kept. Nodes have those after some tokens below them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.state_pool import KeptState

Tokens = tuple[int, ...]
Ids = TypeVar("Ids", list[int], tuple[int, ...])


@dataclass(eq=False, slots=True)
class PrefixNode:
    """A page and what lies in it, up to PAGE_SIZE tokens; those of a root are none.

    Children are by their tokens, which `order` has sorted, and states by the tokens that they have seen after this
    node's: with these one of the children begins. `key` is that of `tiers`, of a full page that was asked for.
    """

    tokens: Tokens
    page: int
    parent: PrefixNode | None
    cache_salt: Hashable
    children: dict[Tokens, PrefixNode] = field(default_factory=dict)
    order: list[Tokens] = field(default_factory=list)
    states: dict[Tokens, KeptState] = field(default_factory=dict)
    key: bytes = b""

    @property
    def above(self) -> PrefixNode:
        """The parent, of a node that is not a root."""
        assert self.parent is not None
        return self.parent

    def add(self, child: PrefixNode) -> None:
        at = bisect_left(self.order, child.tokens)
        self.order.insert(at, child.tokens)
        self.children[child.tokens] = child

    def remove(self, child: PrefixNode) -> None:
        del self.order[bisect_left(self.order, child.tokens)], self.children[child.tokens]

    def nearest(self, tokens: Tokens) -> tuple[int, PrefixNode | None]:
        """The child with the longest common prefix with `tokens`, and its length.

        It is one of the two between which `tokens` would be in order.
        """
        if (child := self.children.get(tokens)) is not None:
            return len(tokens), child
        at = bisect_left(self.order, tokens)
        beside = [(common_length(order, tokens), order) for order in self.order[max(at - 1, 0) : at + 1]]
        matched, order = max(beside, default=(0, ()))
        return matched, self.children[order] if matched else None


class TreeListener(Protocol):
    """Is told of full pages, as they come and go. A page comes after the one before it, and goes before that one."""

    def stored(self, node: PrefixNode) -> None:
        """A page is in the tree from now on, with tokens that stay as they are."""

    def removed(self, node: PrefixNode) -> None:
        """A page is no longer in the tree."""

    def cleared(self) -> None:
        """None is."""


class PrefixTree:
    """The store of a pool: `insert` puts a sequence's pages in, `match_prefix` finds those that a prompt begins with.

    What is inserted with one `cache_salt` is not found with another.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self._roots: dict[Hashable, PrefixNode] = {}
        self._nodes: dict[int, PrefixNode] = {}  # by page
        self._evictable: OrderedDict[PrefixNode, None] = OrderedDict()  # unlocked, least recently used first
        self.listener: TreeListener | None = None
        self.on_evict: Callable[[PrefixNode], None] = lambda node: None
        pool.store = self

    def __len__(self) -> int:
        """Pages in the tree."""
        return len(self._nodes)

    def full_nodes(self) -> Iterator[PrefixNode]:
        """All full pages, each after the one before it."""
        below = list(self._roots.values())
        while below:
            node = below.pop()
            if len(node.tokens) == PAGE_SIZE:
                yield node
            below += node.children.values()

    def match_prefix(self, prompt: Seq[int], cache_salt: Hashable = "") -> Sequence:
        """A sequence of the longest prefix of `prompt` that is here; its pages are locked.

        The last token of a prompt is never part of it: its logits are needed.
        """
        nodes, length, state = self._match(prompt, cache_salt)
        for node in nodes:
            self.pool.lock(node.page)
        if self.pool.states is not None and state is not None:
            self.pool.states.touch(state)
        return Sequence([node.page for node in nodes], list(prompt[:length]), origin=state)

    def lock_prefix(self, tokens: Seq[int], cache_salt: Hashable = "") -> Sequence:
        """A sequence of the full pages of `tokens` that are here, whether or not a state is kept; they are locked."""
        nodes, length = self._walk([*tokens, 0], cache_salt)
        pages = [node.page for node in nodes[: length // PAGE_SIZE]]
        for page in pages:
            self.pool.lock(page)
        return Sequence(pages, list(tokens[: len(pages) * PAGE_SIZE]))

    def match_length(self, prompt: Seq[int], cache_salt: Hashable = "") -> int:
        """How many tokens `match_prefix` would give."""
        return self._match(prompt, cache_salt)[1]

    def computed_length(self, prompt: Seq[int], cache_salt: Hashable = "") -> int:
        """How many tokens of `prompt` others have computed, whether or not a state is kept after them."""
        return self._walk(prompt, cache_salt)[1]

    def _match(self, prompt: Seq[int], cache_salt: Hashable) -> tuple[list[PrefixNode], int, KeptState | None]:
        """The nodes where a sequence of `prompt` can begin, how many tokens of it lie in them, and the state there."""
        nodes, length = self._walk(prompt, cache_salt)
        if self.pool.states is None:
            return nodes, length, None
        for i in reversed(range(len(nodes))):
            states, begin = nodes[i].above.states, i * PAGE_SIZE
            for at in range(min(length - begin, PAGE_SIZE) if states else 0, 0, -1):
                if (state := states.get(nodes[i].tokens[:at])) is not None:
                    return nodes[: i + 1], begin + at, state
        return [], 0, None

    def _walk(self, prompt: Seq[int], cache_salt: Hashable) -> tuple[list[PrefixNode], int]:
        """The nodes that `prompt` goes through, and how many tokens of it lie in them."""
        node, nodes, length = self._roots.get(cache_salt), list[PrefixNode](), 0
        while node is not None:
            matched, node = node.nearest(tuple(prompt[length : min(length + PAGE_SIZE, len(prompt) - 1)]))
            if node is None:
                break
            nodes.append(node)
            length += matched
            if matched < PAGE_SIZE:
                break
        return nodes, length

    def insert(self, sequence: Sequence, cache_salt: Hashable = "", *, tail: bool = False) -> PrefixNode | None:
        """Insert the full pages of `sequence`, and with `tail` its last one too, for others to find.

        The sequence keeps them locked. Where a page of the same tokens is here already, it gets that one. Nothing is
        inserted where layers with a window have pages of their own, for those at the end of a prefix may be given back.
        Returns the node of the last page that was inserted.
        """
        if not self.pool.shares:
            return None
        if tail:
            sequence.room = 0  # its last page may be read by others from now on
        done, node = self._inserted_prefix(sequence, cache_salt)
        last = node if done else None
        for at, tokens in enumerate(_pages(sequence.tokens, done), done):
            if len(tokens) < PAGE_SIZE and not tail:
                break
            last = node = self._inserted(node, sequence, at, tokens)
            if node.tokens != tokens:  # a page that begins with this one's tokens was here
                break
        if last is not None and last in self._evictable:
            self._evictable.move_to_end(last)
        return last

    def _inserted_prefix(self, sequence: Sequence, cache_salt: Hashable) -> tuple[int, PrefixNode]:
        """How many full pages a sequence has up to the last one that is here, and its node; else none, and a root."""
        for count in range(len(sequence) // PAGE_SIZE, 0, -1):
            node = self._nodes.get(sequence.pages[count - 1])
            if node is not None and node.cache_salt == cache_salt and len(node.tokens) == PAGE_SIZE:
                return count, node
        return 0, self._roots.setdefault(cache_salt, PrefixNode((), -1, None, cache_salt))

    def insert_state(self, sequence: Sequence, cache_salt: Hashable = "", *, give: bool = False) -> None:
        """Insert a sequence and the state after its tokens: a copy or, with `give`, its own.

        No state is kept where it has seen other tokens than these, or all slots are taken.
        """
        states, length = self.pool.states, len(sequence)
        node = self.insert(sequence, cache_salt, tail=length % PAGE_SIZE > 0)
        if states is None or node is None or sequence.slot is None or sequence.seen != length:
            return
        home, seen = node.above.states, node.tokens[: (length - 1) % PAGE_SIZE + 1]
        if seen in home:
            states.touch(home[seen])
        elif give:
            states.keep(sequence.slot, length, home, seen)
            sequence.slot, sequence.seen = None, 0
        elif states.free:
            states.keep(states.fork(sequence.slot), length, home, seen)

    def _inserted(self, parent: PrefixNode, sequence: Sequence, at: int, tokens: Tokens) -> PrefixNode:
        """The child of `parent` that begins with the tokens of a sequence's `at`-th page."""
        page = sequence.pages[at]
        matched, child = parent.nearest(tokens)
        if child is not None and matched == len(tokens):
            if child.tokens == tokens and child.page != page:
                self.pool.replace(sequence, at, child.page)
            return child
        if child is not None and matched == len(child.tokens):  # the new tokens begin with the child's, and go on
            if child.page != page:
                self.pool.retain(page)
                self._release(child)
                child.page, self._nodes[page] = page, child
            parent.remove(child)
            child.tokens = tokens
        else:
            child = PrefixNode(tokens, page, parent, parent.cache_salt)
            self.pool.retain(page)
            self._nodes[page] = child
        parent.add(child)
        if self.listener is not None and len(tokens) == PAGE_SIZE:
            self.listener.stored(child)
        return child

    def on_lock(self, page: int) -> None:
        """A sequence locks this page, which none had locked."""
        del self._evictable[self._nodes[page]]

    def on_unlock(self, page: int) -> None:
        """No sequence locks this page any longer."""
        self._evictable[self._nodes[page]] = None

    def evict(self) -> None:
        """Give back the least recently used page of the ones that no sequence locks."""
        node = next(node for node in self._evictable if not node.children)
        self.on_evict(node)
        self._remove(node)

    def forget(self, page: int) -> None:
        """Drop this page, with nothing below it."""
        self._remove(self._nodes[page])

    def invalidate(self, sequence: Sequence, cache_salt: Hashable = "") -> None:
        """Drop the pages of `sequence` and everything below them: what is in them may be wrong."""
        root, found = self._roots.get(cache_salt), list[PrefixNode]()
        own = [self._nodes[page] for page in sequence.pages if page in self._nodes]
        below = [node for node in own if node.parent is root]
        while below:
            found.append(below.pop())
            below += found[-1].children.values()
        for node in reversed(found):
            self._remove(node)

    def erase(self, tokens: Seq[int], cache_salt: Hashable = "") -> int:
        """Drop the pages of `tokens` that no sequence locks and no other page comes after: how many tokens are left."""
        nodes, length = self._walk([*tokens, 0], cache_salt)
        while nodes and nodes[-1] in self._evictable and not nodes[-1].children:
            self._remove(nodes.pop())
            length = len(nodes) * PAGE_SIZE
        return length

    def _remove(self, node: PrefixNode) -> None:
        assert not node.children
        parent = node.above
        parent.remove(node)
        if self.listener is not None and len(node.tokens) == PAGE_SIZE:
            self.listener.removed(node)
        if parent.states:
            others, _ = parent.nearest(node.tokens)
            self._drop_states(parent, [node.tokens[:at] for at in range(others + 1, len(node.tokens) + 1)])
        self._release(node)

    def _release(self, node: PrefixNode) -> None:
        """Drop a node's page."""
        self._evictable.pop(node, None)
        del self._nodes[node.page]
        self.pool.give_up(node.page)

    def clear(self) -> None:
        """Drop all pages. Those that sequences lock are free once these release them."""
        for node in (*self._roots.values(), *self._nodes.values()):
            self._drop_states(node, list(node.states))
        for page in self._nodes:
            self.pool.give_up(page)
        self._nodes.clear()
        self._evictable.clear()
        self._roots.clear()
        if self.listener is not None:
            self.listener.cleared()

    def _drop_states(self, node: PrefixNode, after: list[Tokens]) -> None:
        """Drop the states that are kept after these tokens below a node."""
        for tokens in after:
            if (state := node.states.get(tokens)) is not None:
                assert self.pool.states is not None
                self.pool.states.drop(state)


def _pages(tokens: Seq[int], first: int) -> Iterator[Tokens]:
    """Tokens by page, from the `first` one on."""
    for start in range(first * PAGE_SIZE, len(tokens), PAGE_SIZE):
        yield tuple(tokens[start : start + PAGE_SIZE])


def common_length(a: Ids, b: Ids) -> int:
    """The length of the common prefix, by bisection."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:  # the first `low` are alike, the first `high + 1` are not
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
