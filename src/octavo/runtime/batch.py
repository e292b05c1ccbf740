"""A batch: the tokens of a step, of one or several sequences, as the arrays that a graph takes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from octavo.formats.spec import AnyArray
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
    decodes = counts.count(1) if max(counts) > 1 else 0  # where all have one token, `starts` tells so
    pages = np.zeros((len(feeds), max_pages), np.int32)
    for row, feed in zip(pages, ordered, strict=True):
        row[: len(feed.sequence.pages)] = feed.sequence.pages
    spans = [(f.sequence, len(f.sequence), len(f.sequence) + n) for f, n in zip(ordered, counts, strict=True)]
    stops = dict(zip(order, bounds[1:].tolist(), strict=True))
    outputs = [np.arange(stops[i] - f.outputs, stops[i]) for i, f in enumerate(feeds)]
    inputs: dict[str, AnyArray] = {
        "tokens": np.concatenate([np.asarray(f.tokens, np.int32) for f in ordered]),
        "positions": np.concatenate([np.arange(a, b, dtype=np.int32) for _, a, b in spans]),
        "rows": np.concatenate([rows(s, a, b) for s, a, b in spans]),
        "starts": bounds[decodes:],
        "pages": pages,
        "outputs": np.concatenate(outputs).astype(np.int32),
    }
    sizes = {
        "tokens": int(bounds[-1]),
        "outputs": len(inputs["outputs"]),
        "sequences": len(feeds),
        "boundaries": len(inputs["starts"]),
    }
    return inputs, sizes
