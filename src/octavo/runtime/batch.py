"""A batch: the tokens of a step, of one or several sequences, as the arrays that a graph takes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.kv_cache import Sequence, rows


@dataclass(frozen=True)
class Feed:
    """Tokens to append to a sequence; `outputs` is how many logits are wanted, of the last tokens.

    ahead  tokens that a step under way appends before
    """

    sequence: Sequence
    tokens: Seq[int]
    outputs: int = 1
    ahead: int = 0

    @property
    def start(self) -> int:
        """The position of the first token."""
        return len(self.sequence) + self.ahead

    @property
    def stop(self) -> int:
        """The position after the last one."""
        return len(self.sequence) + self.ahead + len(self.tokens)


def make_batch(feeds: Seq[Feed], max_pages: int) -> tuple[dict[str, AnyArray], dict[str, int]]:
    """The inputs of a step and its sizes. Each sequence's pages already cover its new tokens.

    Feeds of one token come before longer ones, and `starts` leaves them out: op `attention` has another way for them.
    Outputs are in the order of the feeds as they are given.
    """
    order = sorted(range(len(feeds)), key=lambda i: len(feeds[i].tokens) != 1)
    ordered = [feeds[i] for i in order]
    counts = [len(f.tokens) for f in ordered]
    bounds = [0, *accumulate(counts)]
    ones = counts.count(1)
    decodes = ones if max(counts) > 1 else 0  # where all have one token, `starts` tells so
    stops = dict(zip(order, bounds[1:], strict=True))
    outputs = [at for i, f in enumerate(feeds) for at in range(stops[i] - f.outputs, stops[i])]
    inputs: dict[str, AnyArray] = {
        "tokens": np.array([token for f in ordered for token in f.tokens], np.int32),
        "positions": _positions(ordered, ones),
        "starts": np.array(bounds[decodes:], np.int32),
        "outputs": np.array(outputs, np.int32),
    }
    inputs["pages"], inputs["rows"] = _places([f.sequence.pages for f in ordered], ordered, ones, max_pages)
    if any(windows := [f.sequence.window.pages for f in ordered]):  # layers with a window have pages of their own
        inputs["window_pages"], inputs["window_rows"] = _places(windows, ordered, ones, max_pages)
    sizes = {
        "tokens": bounds[-1],
        "outputs": len(outputs),
        "sequences": len(feeds),
        "boundaries": len(inputs["starts"]),
    }
    return inputs, sizes


def _positions(feeds: Seq[Feed], ones: int) -> AnyArray:
    """Positions, int32, of the tokens of feeds, the first of which have one; no arrays for each of these."""
    at = np.array([f.start for f in feeds[:ones]], np.int32)
    rest = [np.arange(f.start, f.stop, dtype=np.int32) for f in feeds[ones:]]
    return np.concatenate([at, *rest]) if rest else at


def _places(lists: Seq[list[int]], feeds: Seq[Feed], ones: int, width: int) -> tuple[AnyArray, AnyArray]:
    """The pages of feeds, int32 [feeds, width], from a list for each, and the cache's rows, int64, of their tokens.

    The first feeds have one token; there are no arrays for each of these.
    """
    table = np.zeros((len(feeds), width), np.int32)
    for row, pages in zip(table, lists, strict=True):
        row[: len(pages)] = pages
    at = [f.start for f in feeds[:ones]]
    of_ones = [pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for pages, p in zip(lists, at, strict=False)]
    found = np.array(of_ones, np.int64)
    rest = [rows(pages, f.start, f.stop) for pages, f in zip(lists[ones:], feeds[ones:], strict=True)]
    return table, np.concatenate([found, *rest]) if rest else found
