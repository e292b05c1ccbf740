"""Sizes of steps: few different ones, so that what is bound and captured for one of them is used again.

Replies are filled up to a number of REPLIES with rows that are thrown away, beside prompts to a power of two. Prompts
are divided so that a step has one of `chunk_sizes` tokens of them; what is missing at the end of the last prompt is
filled up with a sequence of its own. All of these write to one page that nobody reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Seq

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.batch import Feed
from octavo.runtime.kv_cache import Sequence
from octavo.runtime.window_pool import WindowPages, pages_for

REPLIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
TILE = 16
GROWTH = 1.25
"""From one size of prompts to the next one, about."""


def replies_for(n: int) -> int:
    """So many replies, or the next larger number that steps are made for."""
    return REPLIES[bisect_left(REPLIES, n)] if n <= REPLIES[-1] else -(-n // 64) * 64


def power_of_two(n: int) -> int:
    """n, or the next larger power of two; 0 for 0."""
    return 1 << (n - 1).bit_length() if n else 0


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


def filled(
    feeds: Seq[Feed], sizes: Seq[int], scratch: int, most_pages: int, windows: int | None = None
) -> list[Feed]:  # fmt: skip
    """Feeds of a step, and after them others that fill it up; their keys and values go to page `scratch`.

    That is page `windows` in layers with a window, where these have pages of their own.

    All have an output, unless none is wanted. The number of prompts is filled up with sequences of no tokens.
    """
    replies = [f for f in feeds if len(f.tokens) == 1]
    prompts = [f for f in feeds if len(f.tokens) > 1]

    wanted = power_of_two(len(replies)) if prompts else replies_for(len(replies))
    more = [thrown_away(1, scratch, windows) for _ in range(wanted - len(replies))] if replies else []
    if prompts:
        tokens = sum(len(f.tokens) for f in prompts)
        left = min(_missing(tokens, sizes), most_pages * PAGE_SIZE)
        rest = min(2 ** len(prompts).bit_length(), tokens + left - 1) - len(prompts)  # fewer than tokens: not replies
        lengths = [left] + [0] * (rest - 1) if left else [0] * rest
        more += [thrown_away(length, scratch, windows) for length in lengths]
    outputs = int(any(f.outputs for f in feeds))
    return [Feed(f.sequence, f.tokens, max(f.outputs, outputs), f.ahead) for f in feeds] + [
        Feed(f.sequence, f.tokens, outputs, f.ahead) for f in more
    ]


def thrown_away(tokens: int, scratch: int, windows: int | None = None) -> Feed:
    """Tokens of nobody's sequence, whose keys and values go to page `scratch`, or `windows` in layers with a window."""
    pages = pages_for(tokens)
    window = WindowPages([] if windows is None else [windows] * pages)
    return Feed(Sequence([scratch] * pages, window=window), [0] * tokens)


def _missing(prompts: int, sizes: Seq[int]) -> int:
    """Tokens that fill up those of prompts; one would be a reply more."""
    larger = (size - prompts for size in sizes if size >= prompts)
    return next((left for left in larger if left != 1), 0)
