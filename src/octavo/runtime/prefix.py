"""Prefix cache: pages of sequences that have ended, in a tree, for sequences to come that begin alike.

A node is a page and the tokens in it; its children are pages that came after it. Tokens are compared one by one, so a
page is never taken for another one. A sequence may begin with a part of a page: the pool copies that page when the
sequence goes on in another way.

A node is always used more recently than what lies below it. So the one whose last use
is longest ago is a leaf.

Where layers have states, a sequence can begin only where one is kept. Nodes have those after some of their tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.kv_cache import PagePool, Sequence
from octavo.runtime.state_pool import Kept

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Node:
    """A page and what lies in it, up to PAGE_SIZE tokens; those of a root are none.

    Children are by first token, and states by how many of the tokens they have seen, beside all those above.
    """

    tokens: Tokens
    page: int
    parent: Node | None
    children: dict[int, list[Node]] = field(default_factory=dict)
    states: dict[int, Kept] = field(default_factory=dict)


class PageTree:
    """The store of a pool: `publish` puts a sequence's pages in, `match` finds those that a prompt begins with.

    What is published in one space is not found in another.
    """

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self._roots: dict[Hashable, Node] = {}
        self._used: OrderedDict[Node, None] = OrderedDict()  # the node whose last use is longest ago first
        pool.store = self

    def __len__(self) -> int:
        """Pages in the tree."""
        return len(self._used)

    def match(self, prompt: Seq[int], space: Hashable = "") -> Sequence:
        """A sequence of the longest beginning of `prompt` that is here; it holds the pages.

        The last token of a prompt is never among them: its logits are wanted.
        """
        nodes, length, kept = self._begun(prompt, space)
        for node in nodes:
            self.pool.hold(node.page)
        self._touch(nodes)
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
            at = max((at for at in nodes[i].states if i * PAGE_SIZE + at <= length), default=0)
            if at:
                return nodes[: i + 1], i * PAGE_SIZE + at, nodes[i].states[at]
        return [], 0, None

    def _walk(self, prompt: Seq[int], space: Hashable) -> tuple[list[Node], int]:
        """The nodes that `prompt` goes through, and how many tokens of it lie in them."""
        node, nodes, length = self._roots.get(space), list[Node](), 0
        while node is not None:
            rest = prompt[length : min(length + PAGE_SIZE, len(prompt) - 1)]
            found = [(shared(child.tokens, rest), child) for child in _below(node, rest)]
            most, node = max(found, key=lambda pair: pair[0], default=(0, None))
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
        node = self._roots.setdefault(space, Node((), -1, None))
        nodes: list[Node] = []
        for at, tokens in enumerate(_pages(sequence.tokens)):
            if len(tokens) < PAGE_SIZE and not tail:
                break
            node = self._published(node, sequence, at, tokens)
            nodes.append(node)
            if node.tokens != tokens:  # a page that begins with this one's tokens was here
                break
        self._touch(nodes)
        return nodes[-1] if nodes else None

    def keep_state(self, sequence: Sequence, space: Hashable = "", *, give: bool = False) -> None:
        """Publish a sequence, and keep the state after its tokens: a copy or, with `give`, its own.

        No state is kept where it has seen others than these tokens, or all slots are taken.
        """
        states, length = self.pool.states, len(sequence)
        node = self.publish(sequence, space, tail=length % PAGE_SIZE > 0)
        if states is None or node is None or sequence.slot is None or sequence.seen != length:
            return
        at = (length - 1) % PAGE_SIZE + 1
        if at in node.states:
            states.touch(node.states[at])
        elif give:
            states.keep(sequence.slot, length, node.states, at)
            sequence.slot, sequence.seen = None, 0
        elif states.free:
            states.keep(states.fork(sequence.slot), length, node.states, at)

    def _published(self, parent: Node, sequence: Sequence, at: int, tokens: Tokens) -> Node:
        """The child of `parent` that begins with the tokens of a sequence's `at`-th page."""
        page = sequence.pages[at]
        for child in _below(parent, tokens):
            if child.tokens == tokens:
                if child.page != page:
                    self.pool.replace(sequence, at, child.page)
                return child
            if shared(child.tokens, tokens) == len(tokens):
                return child
            if shared(child.tokens, tokens) == len(child.tokens):  # the new tokens begin with the child's, and go on
                if child.page != page:
                    self.pool.keep(page)
                    self.pool.give_up(child.page)
                child.tokens, child.page = tokens, page
                return child
        child = Node(tokens, page, parent)
        parent.children.setdefault(tokens[0], []).append(child)
        self.pool.keep(page)
        self._used[child] = None
        return child

    def _touch(self, nodes: list[Node]) -> None:
        """These nodes, a way from a root downwards, are used now."""
        for node in reversed(nodes):
            self._used.move_to_end(node)

    def evict(self) -> None:
        """Give the page back that was not used for the longest time, of those that no sequence holds."""
        self._remove(next(n for n in self._used if not n.children and not self.pool.is_held(n.page)))

    def forget(self, page: int) -> None:
        """Give up this page, with nothing below it."""
        self._remove(next(n for n in self._used if n.page == page))

    def retract(self, sequence: Sequence, space: Hashable = "") -> None:
        """Forget the pages of `sequence`, and all that came after them: what is in them may be wrong."""
        root = self._roots.get(space, Node((), -1, None))
        own, found = set(sequence.pages), list[Node]()
        below = [child for children in root.children.values() for child in children if child.page in own]
        while below:
            found.append(below.pop())
            below += [child for children in found[-1].children.values() for child in children]
        for node in reversed(found):
            self._remove(node)

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        assert not node.children
        self._drop_states(node)
        siblings = node.parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del node.parent.children[node.tokens[0]]
        del self._used[node]
        self.pool.give_up(node.page)

    def clear(self) -> None:
        """Forget all pages. Those that sequences hold are free when these let go of them."""
        for node in self._used:
            self._drop_states(node)
            self.pool.give_up(node.page)
        self._used.clear()
        self._roots.clear()

    def _drop_states(self, node: Node) -> None:
        for kept in list(node.states.values()):
            assert self.pool.states is not None
            self.pool.states.drop(kept)


def _below(node: Node, tokens: Seq[int]) -> list[Node]:
    """Children that begin with the first of `tokens`."""
    return node.children.get(tokens[0], []) if tokens else []


def _pages(tokens: Seq[int]) -> Iterator[Tokens]:
    """Tokens by page."""
    for start in range(0, len(tokens), PAGE_SIZE):
        yield tuple(tokens[start : start + PAGE_SIZE])


def shared(a: Seq[int], b: Seq[int]) -> int:
    """How many tokens two begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
