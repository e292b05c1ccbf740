"""Sizes of steps: few different ones, so that what is bound and captured for one of them is used again.

Replies are filled up to a number of REPLIES with rows that are thrown away. Prompts are divided so that a step has one
of `chunk_sizes` tokens of them; what is missing at the end of the last prompt is filled up with a sequence of its own.
All of these write to one page that nobody reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Seq

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.batch import Feed
from octavo.runtime.kv_cache import Sequence, pages_for

REPLIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
TILE = 16
GROWTH = 1.25
"""From one size of prompts to the next one, about."""


def replies_for(n: int) -> int:
    """So many replies, or the next larger number that steps are made for."""
    return REPLIES[bisect_left(REPLIES, n)] if n <= REPLIES[-1] else -(-n // 64) * 64


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


def filled(feeds: Seq[Feed], sizes: Seq[int], scratch: int, most_pages: int) -> list[Feed]:
    """Feeds of a step, and after them others that fill it up; their keys and values go to page `scratch`.

    Where there are replies, each of all these feeds has an output, or the filling of prompts none.
    """
    replies, prompts = (sum(len(f.tokens) for f in feeds if (len(f.tokens) == 1) == one) for one in (True, False))
    made = [Feed(f.sequence, f.tokens, 1) for f in feeds] if replies else list(feeds)
    more = replies_for(replies) - replies if replies else 0
    made += [Feed(Sequence([scratch]), [0]) for _ in range(more)]
    size = next((s for s in sizes if s >= prompts), prompts) if prompts else 0
    left = size - prompts
    if left == 1:  # which would be one reply more
        left = next((s for s in sizes if s > size), size) - prompts
    if 1 < left <= most_pages * PAGE_SIZE:
        made.append(Feed(Sequence([scratch] * pages_for(left)), [0] * left, 0))
    return made
