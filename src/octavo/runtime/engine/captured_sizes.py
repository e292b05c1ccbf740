"""Sizes of steps: few different ones, so that what is bound and captured for one of them is used again.

Replies are filled up to a number of REPLIES with rows that are thrown away, beside prompts to one of BESIDE. Prompts
are divided so that a step has one of `chunk_sizes` tokens of them; what is missing at the end of the last prompt is
filled up with a sequence of its own. How many prompts share these tokens hardly matters to a step's time, so that
sequences of no tokens fill up their number to PROMPTS. All of these write to one page, or slot, that nobody reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Seq
from typing import NamedTuple

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.cache.window_pool import WindowPages, pages_for
from octavo.runtime.engine.batch import Feed


class Scratch(NamedTuple):
    """A page that nobody reads, one of layers with a window where these have pages of their own, and a slot for states
    where layers have some."""

    page: int
    window: int | None = None
    slot: int | None = None


class Size(NamedTuple):
    """The size of a step: its replies, and the tokens of its prompts, of which there are up to PROMPTS."""

    replies: int
    tokens: int


REPLIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
BESIDE = (8, 32, 64, 128)
"""Replies beside prompts: tokens of these are many more than the rows that are thrown away."""
PROMPTS = 8
"""Prompts in a step, if it has not more."""
TILE = 16
GROWTH = 1.25
"""How many times as large as a size of prompts the next one is, about."""


def replies_for(n: int) -> int:
    """The number of replies that a step with `n` of them is filled up to."""
    return REPLIES[bisect_left(REPLIES, n)] if n <= REPLIES[-1] else -(-n // 64) * 64


def replies_beside(n: int) -> int:
    """The number of replies that a step with `n` of them beside prompts is filled up to; 0 for 0."""
    return 0 if n == 0 else BESIDE[bisect_left(BESIDE, n)] if n <= BESIDE[-1] else replies_for(n)


def prompts_for(n: int) -> int:
    """The number of prompts, larger than n, that a step with `n` of them is filled up to."""
    return max(PROMPTS, 1 << n.bit_length())


class Made:
    """The sizes of steps that are made so far; `missed` are others that steps would have had."""

    def __init__(self) -> None:
        self._sizes = set[Size]()
        self.missed: dict[Size, None] = {}

    def add(self, size: Size) -> None:
        self._sizes.add(size)

    def instead(self, usual: Size, tokens: int) -> Size:
        """The size to fill up a step with so many `tokens` of prompts to: the usual one if it is made, or if no larger
        one will do; else the smallest larger one that is made."""
        if usual in self._sizes:
            return usual
        self.missed[usual] = None
        able = [s for s in self._sizes if s.replies >= usual.replies and _fills(tokens, s.tokens)]
        return min(able, key=lambda s: (s.tokens, s.replies), default=usual)


def _fills(tokens: int, size: int) -> bool:
    """Whether tokens of prompts can be filled up to a size; one that is missing would be a reply."""
    return size == tokens or size > tokens + 1 if tokens else not size


def size_of(replies: int, prompts: int, tokens: int, sizes: Seq[int], made: Made | None = None) -> tuple[int, int, int]:
    """Replies, prompts, and tokens of these, that a step is filled up to: if possible, a size that is `made`."""
    if prompts:
        usual, most = Size(replies_beside(replies), tokens + _missing(tokens, sizes)), prompts_for(prompts)
    else:
        usual, most = Size(replies_for(replies), 0), 0
    found = usual if made is None or most > PROMPTS else made.instead(usual, tokens)
    return found.replies, most, found.tokens


def most_filled(sequences: int) -> int:
    """The most sequences in a step that is filled up, with so many of them under way."""
    return replies_beside(sequences) + prompts_for(sequences)


def chunk_sizes(most: int) -> tuple[int, ...]:
    """Tokens of prompts that a step may have, the last one `most`: multiples of TILE, each a quarter more or so."""
    sizes, size = [], TILE
    while size < most:
        sizes.append(size)
        size = max(size + TILE, int(size * GROWTH) // TILE * TILE)
    return (*sizes, most)


def all_sizes(sequences: int, chunks: Seq[int]) -> tuple[list[Size], list[Size]]:
    """Sizes of steps with up to so many sequences and parts of prompts of these sizes: those that do for any step, and
    all others, few replies first."""
    most, beside, chunks = replies_for(sequences), replies_beside(sequences), chunks[::-1]
    largest = [Size(0, chunks[0]), Size(beside, chunks[0])] if chunks else []
    first = list(dict.fromkeys([Size(1, 0), *largest, Size(most, 0)]))
    every = [Size(n, 0) for n in REPLIES if n <= most]
    every += [Size(n, tokens) for n in (0, *(n for n in BESIDE if n <= beside)) for tokens in chunks]
    return first, [size for size in every if size not in first]


def at_most(n: int, sizes: Seq[int]) -> int:
    """The largest size up to n; n itself if it is smaller than all."""
    at = bisect_right(sizes, n)
    return sizes[at - 1] if at else n


def filled(
    feeds: Seq[Feed], sizes: Seq[int], scratch: Scratch, most_pages: int, made: Made | None = None
) -> list[Feed]:
    """Feeds of a step, and after them others that fill it up and write to `scratch`. All have an output."""
    prompts = [len(f.tokens) for f in feeds if len(f.tokens) > 1]
    replies, tokens = len(feeds) - len(prompts), sum(prompts)
    wanted, most, whole = size_of(replies, len(prompts), tokens, sizes, made)
    more = [thrown_away(1, scratch)] * (wanted - replies)
    if prompts:
        left = min(whole - tokens, most_pages * PAGE_SIZE)
        rest = min(most, tokens + left - 1) - len(prompts)  # fewer than tokens, as in no step of replies
        lengths = [left] + [0] * (rest - 1) if left else [0] * rest
        more += [thrown_away(length, scratch) for length in lengths]
    return [f if f.outputs else Feed(f.sequence, f.tokens, 1, f.ahead) for f in feeds] + more


def thrown_away(tokens: int, scratch: Scratch) -> Feed:
    """A feed whose results nobody reads, and which writes to `scratch`."""
    pages = pages_for(tokens)
    window = WindowPages([] if scratch.window is None else [scratch.window] * pages)
    return Feed(Sequence([scratch.page] * pages, window=window, room=tokens, slot=scratch.slot), [0] * tokens)


def _missing(prompts: int, sizes: Seq[int]) -> int:
    """Tokens that fill up those of prompts; one would be a reply more."""
    larger = (size - prompts for size in sizes if size >= prompts)
    return next((left for left in larger if left != 1), 0)
