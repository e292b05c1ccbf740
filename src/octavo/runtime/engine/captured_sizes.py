"""Sizes of steps: few different ones, so that what is bound and captured for one of them is used again.

Steps are padded to a bucket: replies to a number of REPLIES with dummy rows, beside prompts to one of BESIDE. Prompts
are divided so that a step has one of `chunk_sizes` tokens of them; what is missing at the end of the last prompt is
padded with a dummy sequence. How many prompts share these tokens hardly matters to a step's time, so dummy sequences
without tokens pad their number to PROMPTS. All of them write to one page, or slot, that nobody reads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Seq
from typing import NamedTuple

from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.cache.window_pool import WindowPages, pages_for
from octavo.runtime.engine.batch import Feed


class DummySlots(NamedTuple):
    """A page that nobody reads, one of layers with a window where these have pages of their own, and a slot for states
    where layers have some."""

    page: int
    window: int | None = None
    slot: int | None = None


class StepSize(NamedTuple):
    """The size of a step: its replies, and the tokens of its prompts, of which there are up to PROMPTS."""

    replies: int
    tokens: int


REPLIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
BESIDE = (8, 32, 64, 128)
"""Replies beside prompts, whose tokens are many more than the dummy rows."""
PROMPTS = 8
"""Prompts in a step, unless it has more."""
TILE = 16
GROWTH = 1.25
"""How many times as large as a size of prompts the next one is, about."""


def replies_for(n: int) -> int:
    """The number of replies that a step with `n` of them is padded to."""
    return REPLIES[bisect_left(REPLIES, n)] if n <= REPLIES[-1] else -(-n // 64) * 64


def replies_beside(n: int) -> int:
    """The number of replies that a step with `n` of them beside prompts is padded to; 0 for 0."""
    return 0 if n == 0 else BESIDE[bisect_left(BESIDE, n)] if n <= BESIDE[-1] else replies_for(n)


def prompts_for(n: int) -> int:
    """The number of prompts, larger than n, that a step with `n` of them is padded to."""
    return max(PROMPTS, 1 << n.bit_length())


class CapturedSizes:
    """The sizes of steps that are captured so far; `missed` are others that steps would have had."""

    def __init__(self) -> None:
        self._sizes = set[StepSize]()
        self.missed: dict[StepSize, None] = {}

    def add(self, size: StepSize) -> None:
        self._sizes.add(size)

    def instead(self, usual: StepSize, tokens: int) -> StepSize:
        """The size to pad a step with these `tokens` of prompts to: the usual one if it is captured, or if no larger
        one will do; else the smallest larger one that is captured."""
        if usual in self._sizes:
            return usual
        self.missed[usual] = None
        able = [s for s in self._sizes if s.replies >= usual.replies and _fills(tokens, s.tokens)]
        return min(able, key=lambda s: (s.tokens, s.replies), default=usual)


def _fills(tokens: int, size: int) -> bool:
    """Whether tokens of prompts can be padded to a size; a single dummy token would be a reply."""
    return size == tokens or size > tokens + 1 if tokens else not size


def size_of(
    replies: int, prompts: int, tokens: int, sizes: Seq[int], captured: CapturedSizes | None = None
) -> tuple[int, int, int]:
    """Replies, prompts, and tokens of these, that a step is padded to: if possible, a captured size."""
    if prompts:
        usual, most = StepSize(replies_beside(replies), tokens + _missing(tokens, sizes)), prompts_for(prompts)
    else:
        usual, most = StepSize(replies_for(replies), 0), 0
    found = usual if captured is None or most > PROMPTS else captured.instead(usual, tokens)
    return found.replies, most, found.tokens


def max_padded(sequences: int) -> int:
    """The most sequences in a padded step, with this many running."""
    return replies_beside(sequences) + prompts_for(sequences)


def chunk_sizes(most: int) -> tuple[int, ...]:
    """Tokens of prompts that a step may have, up to `most`: multiples of TILE, each about a quarter more."""
    sizes, size = [], TILE
    while size < most:
        sizes.append(size)
        size = max(size + TILE, int(size * GROWTH) // TILE * TILE)
    return (*sizes, most)


def all_sizes(sequences: int, chunks: Seq[int]) -> tuple[list[StepSize], list[StepSize]]:
    """Sizes of steps with up to this many sequences and chunks of prompts: those that do for any step, and all others,
    those that are far apart first, so that soon no step is padded to much more than its size."""
    most, beside, chunks = replies_for(sequences), replies_beside(sequences), chunks[::-1]
    largest = [StepSize(0, chunks[0]), StepSize(beside, chunks[0])] if chunks else []
    first = list(dict.fromkeys([StepSize(1, 0), *largest, StepSize(most, 0)]))
    every = [(int(n & (n - 1) > 0), StepSize(n, 0)) for n in REPLIES if n <= most]
    of_prompts = [(n, at) for n in (0, *(n for n in BESIDE if n <= beside)) for at in range(len(chunks))]
    every += [((at % 4 > 0) + at % 2, StepSize(n, chunks[at])) for n, at in of_prompts]
    return first, [size for _, size in sorted(every, key=lambda each: each[0]) if size not in first]


def at_most(n: int, sizes: Seq[int]) -> int:
    """The largest size up to n; n itself if it is smaller than all."""
    at = bisect_right(sizes, n)
    return sizes[at - 1] if at else n


def pad_to_bucket(
    feeds: Seq[Feed], sizes: Seq[int], slots: DummySlots, max_pages: int, captured: CapturedSizes | None = None
) -> list[Feed]:
    """Feeds of a step, and after them dummy ones that pad it and write to `slots`. All have an output."""
    prompts = [len(f.tokens) for f in feeds if len(f.tokens) > 1]
    replies, tokens = len(feeds) - len(prompts), sum(prompts)
    bucket, most, total = size_of(replies, len(prompts), tokens, sizes, captured)
    more = [dummy_feed(1, slots)] * (bucket - replies)
    if prompts:
        left = min(total - tokens, max_pages * PAGE_SIZE)
        rest = min(most, tokens + left - 1) - len(prompts)  # fewer than tokens, as in no step of replies
        lengths = [left] + [0] * (rest - 1) if left else [0] * rest
        more += [dummy_feed(length, slots) for length in lengths]
    return [f if f.outputs else Feed(f.sequence, f.tokens, 1, f.ahead) for f in feeds] + more


def dummy_feed(tokens: int, slots: DummySlots) -> Feed:
    """A feed whose results nobody reads, and which writes to `slots`."""
    pages = pages_for(tokens)
    window = WindowPages([] if slots.window is None else [slots.window] * pages)
    return Feed(Sequence([slots.page] * pages, window=window, room=tokens, slot=slots.slot), [0] * tokens)


def _missing(prompts: int, sizes: Seq[int]) -> int:
    """Dummy tokens that pad those of prompts; a single one would be a reply more."""
    larger = (size - prompts for size in sizes if size >= prompts)
    return next((left for left in larger if left != 1), 0)
