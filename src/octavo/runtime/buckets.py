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
from octavo.runtime.batch import Feed
from octavo.runtime.kv_cache import Sequence
from octavo.runtime.window_pool import WindowPages, pages_for


class Scratch(NamedTuple):
    """A page that nobody reads, one of layers with a window where these have pages of their own, and a slot for states
    where layers have some."""

    page: int
    window: int | None = None
    slot: int | None = None


REPLIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
BESIDE = (8, 32, 64, 128)
"""Replies beside prompts: tokens of these are many more than the rows that are thrown away."""
PROMPTS = 8
"""Prompts in a step, if it has not more."""
TILE = 16
GROWTH = 1.25
"""From one size of prompts to the next one, about."""


def replies_for(n: int) -> int:
    """So many replies, or the next larger number that steps are made for."""
    return REPLIES[bisect_left(REPLIES, n)] if n <= REPLIES[-1] else -(-n // 64) * 64


def replies_beside(n: int) -> int:
    """So many replies beside prompts, or the next larger number that steps are made for; 0 for 0."""
    return 0 if n == 0 else BESIDE[bisect_left(BESIDE, n)] if n <= BESIDE[-1] else replies_for(n)


def prompts_for(n: int) -> int:
    """A number of prompts that steps are made for, larger than n."""
    return max(PROMPTS, 1 << n.bit_length())


def size_of(replies: int, prompts: int, tokens: int, sizes: Seq[int]) -> tuple[int, int, int]:
    """Replies, prompts, and tokens of these, that a step of so many is filled up to."""
    if not prompts:
        return replies_for(replies), 0, 0
    return replies_beside(replies), prompts_for(prompts), tokens + _missing(tokens, sizes)


def most_filled(sequences: int) -> int:
    """Sequences of a step that is filled up, where so many are under way."""
    return replies_beside(sequences) + prompts_for(sequences)


def chunk_sizes(most: int) -> tuple[int, ...]:
    """Tokens of prompts that a step may have, the last one `most`: multiples of TILE, each a quarter more or so."""
    sizes, size = [], TILE
    while size < most:
        sizes.append(size)
        size = max(size + TILE, int(size * GROWTH) // TILE * TILE)
    return (*sizes, most)


def at_most(n: int, sizes: Seq[int]) -> int:
    """The largest size up to n; n itself if it is smaller than all."""
    at = bisect_right(sizes, n)
    return sizes[at - 1] if at else n


def filled(feeds: Seq[Feed], sizes: Seq[int], scratch: Scratch, most_pages: int) -> list[Feed]:
    """Feeds of a step, and after them others that fill it up and write to `scratch`. All have an output."""
    replies = [f for f in feeds if len(f.tokens) == 1]
    prompts = [f for f in feeds if len(f.tokens) > 1]

    wanted = replies_beside(len(replies)) if prompts else replies_for(len(replies))
    more = [thrown_away(1, scratch)] * (wanted - len(replies)) if replies else []
    if prompts:
        tokens = sum(len(f.tokens) for f in prompts)
        left = min(_missing(tokens, sizes), most_pages * PAGE_SIZE)
        rest = min(prompts_for(len(prompts)), tokens + left - 1) - len(prompts)  # fewer than tokens: not replies
        lengths = [left] + [0] * (rest - 1) if left else [0] * rest
        more += [thrown_away(length, scratch) for length in lengths]
    return [f if f.outputs else Feed(f.sequence, f.tokens, 1, f.ahead) for f in feeds] + more


def thrown_away(tokens: int, scratch: Scratch) -> Feed:
    """Tokens of nobody's sequence, which write to `scratch`."""
    pages = pages_for(tokens)
    window = WindowPages([] if scratch.window is None else [scratch.window] * pages)
    return Feed(Sequence([scratch.page] * pages, window=window, room=tokens, slot=scratch.slot), [0] * tokens)


def _missing(prompts: int, sizes: Seq[int]) -> int:
    """Tokens that fill up those of prompts; one would be a reply more."""
    larger = (size - prompts for size in sizes if size >= prompts)
    return next((left for left in larger if left != 1), 0)
