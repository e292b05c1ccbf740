"""A batch: the tokens of a step, of one or several sequences, as the arrays that a graph takes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from octavo.formats.spec import F32, AnyArray
from octavo.graph.chosen_adapters import INPUTS
from octavo.graph.node import PAGE_SIZE
from octavo.runtime.cache.page_pool import Sequence, rows


@dataclass(slots=True)
class Feed:
    """Tokens to append to a sequence; `outputs` is how many of the last tokens get logits.

    ahead   tokens that steps in flight append before
    second  of the tokens those at the end that are of a second text, which some encoders tell from the first; None for
            models that don't
    hidden  of a head's step: the hidden states [tokens, width] that it reads; None for zeros
    """

    sequence: Sequence
    tokens: Seq[int]
    outputs: int = 1
    ahead: int = 0
    second: int | None = None
    hidden: F32 | None = None

    @property
    def start(self) -> int:
        """The position of the first token."""
        return len(self.sequence) + self.ahead

    @property
    def stop(self) -> int:
        """The position after the last one."""
        return len(self.sequence) + self.ahead + len(self.tokens)


def make_batch(
    feeds: Seq[Feed], max_pages: int, adapters: int = 0, width: int = 0
) -> tuple[dict[str, AnyArray], dict[str, int]]:
    """The inputs of a step and its sizes. Each sequence's pages already cover its new tokens.

    adapters  slots of adapters that the step reads
    width     of hidden states that it reads, 0 for none

    Feeds of one token come before longer ones, and `starts` leaves them out: op `attention` has another way for them.
    Outputs are in the order of the feeds as they are given.
    """
    numbers = [len(f.tokens) for f in feeds]
    ones, ordered = numbers.count(1), feeds
    order: Seq[int] = range(len(feeds))
    bounds: Seq[int] = range(len(feeds) + 1)
    if ones < len(feeds):
        order = sorted(order, key=lambda i: numbers[i] != 1)
        ordered = [feeds[i] for i in order]
        bounds = [0, *accumulate([numbers[i] for i in order])]
    decodes = ones if bounds[-1] > ones else 0  # where all have one token, `starts` tells so
    starts = [len(f.sequence.tokens) + f.ahead for f in ordered]
    inputs: dict[str, AnyArray] = {
        "tokens": np.array([token for f in ordered for token in f.tokens], np.int32),
        "positions": _positions(ordered, starts, ones),
        "starts": np.array(bounds[decodes:], np.int32),
        "outputs": np.array(_outputs(feeds, order, bounds), np.int32),
    }
    if ordered[0].second is not None:
        inputs["kinds"] = np.zeros(bounds[-1], np.int32)
        for feed, stop in zip(ordered, bounds[1:], strict=True):
            inputs["kinds"][stop - (feed.second or 0) : stop] = 1
    inputs["pages"] = _table([f.sequence for f in ordered], max_pages)
    inputs["rows"] = _rows([f.sequence.pages for f in ordered], ordered, starts, ones)
    if any(windows := [f.sequence.window.pages for f in ordered]):  # layers with a window have pages of their own
        inputs["window_pages"] = np.stack([_row(pages, max_pages) for pages in windows])
        inputs["window_rows"] = _rows(windows, ordered, starts, ones)
    if ordered[0].sequence.slot is not None:
        inputs["slots"] = np.array([f.sequence.slot for f in ordered], np.int32)
    if width:
        hidden = [np.zeros((len(f.tokens), width), np.float32) if f.hidden is None else f.hidden for f in ordered]
        inputs["hidden"] = hidden[0] if len(hidden) == 1 else np.concatenate(hidden)
    if adapters:
        inputs |= _by_adapter(ordered, bounds, inputs["outputs"], adapters)
    sizes = {
        "tokens": bounds[-1],
        "outputs": len(inputs["outputs"]),
        "sequences": len(feeds),
        "boundaries": len(inputs["starts"]),
    }
    return inputs, sizes


def places(feeds: Seq[Feed]) -> list[tuple[Sequence, int, int, int]]:
    """Of each feed of a batch its sequence, its first position, and where its tokens begin and end in the batch."""
    found, at = [], 0
    ordered = feeds if all(len(f.tokens) == 1 for f in feeds) else sorted(feeds, key=lambda f: len(f.tokens) != 1)
    for feed in ordered:
        sequence, stop = feed.sequence, at + len(feed.tokens)
        found.append((sequence, len(sequence.tokens) + feed.ahead, at, stop))
        at = stop
    return found


def _outputs(feeds: Seq[Feed], order: Seq[int], bounds: Seq[int]) -> list[int]:
    """The tokens that get logits, feed by feed, where feed `order[i]` is from `bounds[i]` to the next bound."""
    stops = [0] * len(feeds)
    for i, stop in zip(order, bounds[1:], strict=True):
        stops[i] = stop
    return [at for stop, f in zip(stops, feeds, strict=True) for at in range(stop - f.outputs, stop)]


def _by_adapter(feeds: Seq[Feed], bounds: Seq[int], outputs: AnyArray, slots: int) -> dict[str, AnyArray]:
    """Tokens and outputs by the slots of their adapters, see `graph.chosen_adapters.INPUTS`."""
    lengths = np.diff(np.asarray(bounds))
    chosen = np.repeat([slots if f.sequence.adapter is None else f.sequence.adapter for f in feeds], lengths)
    found: dict[str, AnyArray] = {}
    for axis, slot in (("tokens", chosen), ("outputs", chosen[outputs])):
        rows, starts = INPUTS[axis]
        found[rows] = np.argsort(slot, kind="stable").astype(np.int32)
        found[starts] = np.append(0, np.bincount(slot, minlength=slots)[:slots].cumsum()).astype(np.int32)
    return found


def _positions(feeds: Seq[Feed], starts: Seq[int], ones: int) -> AnyArray:
    """Positions, int32, of the tokens of feeds, the first of which have one; no arrays for each of these."""
    at = np.array(starts[:ones], np.int32)
    rest = [np.arange(f.start, f.stop, dtype=np.int32) for f in feeds[ones:]]
    return np.concatenate([at, *rest]) if rest else at


def _table(sequences: Seq[Sequence], width: int) -> AnyArray:
    """The pages of sequences, int32 [sequences, width]. Each keeps its row of it as long as it has the same pages."""
    for sequence in sequences:
        if sequence.row is None or len(sequence.row) != width:
            sequence.row = _row(sequence.pages, width)
    return np.concatenate([s.row for s in sequences]).reshape(len(sequences), width)


def _row(pages: Seq[int], width: int) -> npt.NDArray[np.int32]:
    row = np.zeros(width, np.int32)
    row[: len(pages)] = pages
    return row


def _rows(lists: Seq[list[int]], feeds: Seq[Feed], starts: Seq[int], ones: int) -> AnyArray:
    """The cache's rows, int64, of the tokens of feeds, whose pages are in `lists`; see `_positions`."""
    of_ones = [
        pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for pages, p in zip(lists[:ones], starts, strict=False)
    ]
    found = np.array(of_ones, np.int64)
    rest = [rows(pages, f.start, f.stop) for pages, f in zip(lists[ones:], feeds[ones:], strict=True)]
    return np.concatenate([found, *rest]) if rest else found
