"""A batch: the tokens of a step, of one or several sequences, as the arrays that a graph takes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.kv_cache import Sequence, rows


@dataclass(frozen=True)
class Feed:
    """Tokens to append to a sequence; `outputs` is how many logits are wanted, of the last tokens."""

    sequence: Sequence
    tokens: Seq[int]
    outputs: int = 1


def make_batch(feeds: Seq[Feed], max_pages: int) -> tuple[dict[str, AnyArray], dict[str, int]]:
    """The inputs of a step and its sizes. Each sequence's pages already cover its new tokens.

    Feeds of one token come before longer ones, and `starts` leaves them out: op `attention` has another way for them.
    Outputs are in the order of the feeds as they are given.
    """
    order = sorted(range(len(feeds)), key=lambda i: len(feeds[i].tokens) != 1)
    ordered = [feeds[i] for i in order]
    counts = [len(f.tokens) for f in ordered]
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    ones = counts.count(1)
    decodes = ones if max(counts) > 1 else 0  # where all have one token, `starts` tells so
    pages = np.zeros((len(feeds), max_pages), np.int32)
    for row, feed in zip(pages, ordered, strict=True):
        row[: len(feed.sequence.pages)] = feed.sequence.pages
    positions, places = _places(ordered[:ones], ordered[ones:])
    stops = dict(zip(order, bounds[1:].tolist(), strict=True))
    outputs = [at for i, f in enumerate(feeds) for at in range(stops[i] - f.outputs, stops[i])]
    inputs: dict[str, AnyArray] = {
        "tokens": np.array([token for f in ordered for token in f.tokens], np.int32),
        "positions": positions,
        "rows": places,
        "starts": bounds[decodes:],
        "pages": pages,
        "outputs": np.array(outputs, np.int32),
    }
    sizes = {
        "tokens": int(bounds[-1]),
        "outputs": len(outputs),
        "sequences": len(feeds),
        "boundaries": len(inputs["starts"]),
    }
    return inputs, sizes


def _places(ones: Seq[Feed], others: Seq[Feed]) -> tuple[AnyArray, AnyArray]:
    """Positions, int32, and rows of the cache, int64, of the tokens of feeds; no arrays for each feed of one token."""
    at = [len(f.sequence) for f in ones]
    of_ones = [f.sequence.pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for f, p in zip(ones, at, strict=True)]
    spans = [(f.sequence, len(f.sequence), len(f.sequence) + len(f.tokens)) for f in others]
    positions = [np.array(at, np.int32), *(np.arange(a, b, dtype=np.int32) for _, a, b in spans)]
    places = [np.array(of_ones, np.int64), *(rows(s, a, b) for s, a, b in spans)]
    return np.concatenate(positions), np.concatenate(places)
