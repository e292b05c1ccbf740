"""Prefix cache: pages of sequences that have ended, in a tree, for sequences to come that begin alike.

A node is a page and the tokens in it; its children are pages that came after it. Tokens are compared, not hashes of
them, so a page is never taken for another one. A sequence may begin with a part of a page: the pool copies that page
when the sequence goes on in another way. No child's tokens begin with another child's.

Who holds a node's page holds those above it, too, and lets go of them later. So of the nodes that no sequence holds the
one that was let go first is a leaf.

Where layers have states, a sequence can begin only where one is kept. Nodes have those after some tokens below them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TypeVar

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.state_pool import Kept

Tokens = tuple[int, ...]
Some = TypeVar("Some", list[int], tuple[int, ...])


@dataclass(eq=False, slots=True)
class Node:
    """A page and what lies in it, up to PAGE_SIZE tokens; those of a root are none.

    Children are by their tokens, which `order` has sorted, and states by the tokens that they have seen after this
    node's: with these one of the children begins.
    """

    tokens: Tokens
    page: int
    parent: Node | None
    space: Hashable
    children: dict[Tokens, Node] = field(default_factory=dict)
    order: list[Tokens] = field(default_factory=list)
    states: dict[Tokens, Kept] = field(default_factory=dict)

    @property
    def above(self) -> Node:
        """The parent, of a node that is no root."""
        assert self.parent is not None
        return self.parent

    def add(self, child: Node) -> None:
        at = bisect_left(self.order, child.tokens)
        self.order.insert(at, child.tokens)
        self.children[child.tokens] = child

    def remove(self, child: Node) -> None:
        del self.order[bisect_left(self.order, child.tokens)], self.children[child.tokens]

    def nearest(self, tokens: Tokens) -> tuple[int, Node | None]:
        """A child that begins with as many of `tokens` as any other does, and how many these are.

        It is one of the two between which `tokens` would be in order.
        """
        if (child := self.children.get(tokens)) is not None:
            return len(tokens), child
        at = bisect_left(self.order, tokens)
        beside = [(shared(order, tokens), order) for order in self.order[max(at - 1, 0) : at + 1]]
        most, order = max(beside, default=(0, ()))
        return most, self.children[order] if most else None


class PageTree:
    """The store of a pool: `publish` puts a sequence's pages in, `match` finds those that a prompt begins with.

    What is published in one space is not found in another.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self._roots: dict[Hashable, Node] = {}
        self._nodes: dict[int, Node] = {}  # by page
        self._idle: OrderedDict[Node, None] = OrderedDict()  # held by no sequence, that let go first before the others
        pool.store = self

    def __len__(self) -> int:
        """Pages in the tree."""
        return len(self._nodes)

    def match(self, prompt: Seq[int], space: Hashable = "") -> Sequence:
        """A sequence of the longest beginning of `prompt` that is here; it holds the pages.

        The last token of a prompt is never among them: its logits are wanted.
        """
        nodes, length, kept = self._begun(prompt, space)
        for node in nodes:
            self.pool.hold(node.page)
        if self.pool.states is not None and kept is not None:
            self.pool.states.touch(kept)
        return Sequence([node.page for node in nodes], list(prompt[:length]), origin=kept)

    def matching(self, prompt: Seq[int], space: Hashable = "") -> int:
        """How many tokens `match` would give."""
        return self._begun(prompt, space)[1]

    def shared(self, prompt: Seq[int], space: Hashable = "") -> int:
        """How many tokens of `prompt` others have computed, whether or not a state is kept after them."""
        return self._walk(prompt, space)[1]

    def _begun(self, prompt: Seq[int], space: Hashable) -> tuple[list[Node], int, Kept | None]:
        """The nodes where a sequence of `prompt` can begin, how many tokens of it lie in them, and the state there."""
        nodes, length = self._walk(prompt, space)
        if self.pool.states is None:
            return nodes, length, None
        for i in reversed(range(len(nodes))):
            states, begin = nodes[i].above.states, i * PAGE_SIZE
            for at in range(min(length - begin, PAGE_SIZE) if states else 0, 0, -1):
                if (kept := states.get(nodes[i].tokens[:at])) is not None:
                    return nodes[: i + 1], begin + at, kept
        return [], 0, None

    def _walk(self, prompt: Seq[int], space: Hashable) -> tuple[list[Node], int]:
        """The nodes that `prompt` goes through, and how many tokens of it lie in them."""
        node, nodes, length = self._roots.get(space), list[Node](), 0
        while node is not None:
            most, node = node.nearest(tuple(prompt[length : min(length + PAGE_SIZE, len(prompt) - 1)]))
            if node is None:
                break
            nodes.append(node)
            length += most
            if most < PAGE_SIZE:
                break
        return nodes, length

    def publish(self, sequence: Sequence, space: Hashable = "", *, tail: bool = False) -> Node | None:
        """Keep the full pages of `sequence`, and with `tail` its last one too, for others to find.

        The sequence goes on to hold them. Where a page of the same tokens is here already, it gets that one. Nothing is
        kept where layers with a window have pages of their own, for those at the end of a prefix may be given back.
        Returns the node of the last page that is kept.
        """
        if not self.pool.shares:
            return None
        if tail:
            sequence.room = 0  # its last page may be read by others from now on
        done, node = self._kept(sequence, space)
        last = node if done else None
        for at, tokens in enumerate(_pages(sequence.tokens, done), done):
            if len(tokens) < PAGE_SIZE and not tail:
                break
            last = node = self._published(node, sequence, at, tokens)
            if node.tokens != tokens:  # a page that begins with this one's tokens was here
                break
        if last is not None and last in self._idle:
            self._idle.move_to_end(last)
        return last

    def _kept(self, sequence: Sequence, space: Hashable) -> tuple[int, Node]:
        """How many full pages a sequence has up to the last one that is here, and its node; else none, and a root."""
        for count in range(len(sequence) // PAGE_SIZE, 0, -1):
            node = self._nodes.get(sequence.pages[count - 1])
            if node is not None and node.space == space and len(node.tokens) == PAGE_SIZE:
                return count, node
        return 0, self._roots.setdefault(space, Node((), -1, None, space))

    def keep_state(self, sequence: Sequence, space: Hashable = "", *, give: bool = False) -> None:
        """Publish a sequence, and keep the state after its tokens: a copy or, with `give`, its own.

        No state is kept where it has seen others than these tokens, or all slots are taken.
        """
        states, length = self.pool.states, len(sequence)
        node = self.publish(sequence, space, tail=length % PAGE_SIZE > 0)
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

    def _published(self, parent: Node, sequence: Sequence, at: int, tokens: Tokens) -> Node:
        """The child of `parent` that begins with the tokens of a sequence's `at`-th page."""
        page = sequence.pages[at]
        most, child = parent.nearest(tokens)
        if child is not None and most == len(tokens):
            if child.tokens == tokens and child.page != page:
                self.pool.replace(sequence, at, child.page)
            return child
        if child is not None and most == len(child.tokens):  # the new tokens begin with the child's, and go on
            if child.page != page:
                self.pool.keep(page)
                self._let_go(child)
                child.page, self._nodes[page] = page, child
            parent.remove(child)
            child.tokens = tokens
        else:
            child = Node(tokens, page, parent, parent.space)
            self.pool.keep(page)
            self._nodes[page] = child
        parent.add(child)
        return child

    def held(self, page: int) -> None:
        """A sequence holds this page, which none held."""
        del self._idle[self._nodes[page]]

    def idle(self, page: int) -> None:
        """No sequence holds this page any longer."""
        self._idle[self._nodes[page]] = None

    def evict(self) -> None:
        """Give the page back that was not used for the longest time, of those that no sequence holds."""
        self._remove(next(node for node in self._idle if not node.children))

    def forget(self, page: int) -> None:
        """Give up this page, with nothing below it."""
        self._remove(self._nodes[page])

    def retract(self, sequence: Sequence, space: Hashable = "") -> None:
        """Forget the pages of `sequence`, and all that came after them: what is in them may be wrong."""
        root, found = self._roots.get(space), list[Node]()
        own = [self._nodes[page] for page in sequence.pages if page in self._nodes]
        below = [node for node in own if node.parent is root]
        while below:
            found.append(below.pop())
            below += found[-1].children.values()
        for node in reversed(found):
            self._remove(node)

    def _remove(self, node: Node) -> None:
        assert not node.children
        parent = node.above
        parent.remove(node)
        if parent.states:
            others, _ = parent.nearest(node.tokens)
            self._drop_states(parent, [node.tokens[:at] for at in range(others + 1, len(node.tokens) + 1)])
        self._let_go(node)

    def _let_go(self, node: Node) -> None:
        """Give up a node's page."""
        self._idle.pop(node, None)
        del self._nodes[node.page]
        self.pool.give_up(node.page)

    def clear(self) -> None:
        """Forget all pages. Those that sequences hold are free when these let go of them."""
        for node in (*self._roots.values(), *self._nodes.values()):
            self._drop_states(node, list(node.states))
        for page in self._nodes:
            self.pool.give_up(page)
        self._nodes.clear()
        self._idle.clear()
        self._roots.clear()

    def _drop_states(self, node: Node, after: list[Tokens]) -> None:
        """Drop the states that are kept after these tokens below a node."""
        for tokens in after:
            if (kept := node.states.get(tokens)) is not None:
                assert self.pool.states is not None
                self.pool.states.drop(kept)


def _pages(tokens: Seq[int], first: int) -> Iterator[Tokens]:
    """Tokens by page, from the `first` one on."""
    for start in range(first * PAGE_SIZE, len(tokens), PAGE_SIZE):
        yield tuple(tokens[start : start + PAGE_SIZE])


def shared(a: Some, b: Some) -> int:
    """How many tokens two begin with alike, found by halving."""
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
