"""Which replica a request goes to: the one that holds the pages of most of its prompt, unless it has too much to do.

Prompts are not tokenized for this. Their text is cut into blocks, each known by a hash of it and of all before it, as
pages are, and of each block it is remembered which replicas were sent it.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

BLOCK = 64
"""Bytes of the first blocks of a prompt. Later ones are larger, so that a long prompt has few of them."""
GROWTH = 8
"""A block is at least as long as what is before it, divided by this."""
MOST_BLOCKS = 1 << 16
"""Blocks that are remembered; a prompt of 100 KB has 70."""
BOUND, FEW = 1.25, 2
"""A replica may have this many times the mean load, and so few requests in any case."""
PARTS = ("system", "instructions", "tools", "functions", "messages", "input", "prompt")
"""Fields that prompts are made of, in the order in which templates write them."""
SALTS = ("cache_salt", "model")
to_json = msgspec.json.Encoder().encode


def blocks_of(body: bytes | bytearray, key: bytes) -> list[int]:
    """Hashes of the blocks of a request's prompt; none where it has none. Requests with another `key` have others."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []
    if not isinstance(found, dict):
        return []
    text = b"\0".join(_text(found[name]) for name in PARTS if found.get(name))
    hashes, at = [hash((key, *(str(found.get(name)) for name in SALTS)))], 0
    while (size := max(BLOCK, at // GROWTH // BLOCK * BLOCK)) <= len(text) - at:
        hashes.append(hash((hashes[-1], text[at : at + size])))
        at += size
    return hashes[1:]


def _text(part: Any) -> bytes:
    """A part of a prompt; that of a longer conversation begins with that of a shorter one."""
    if isinstance(part, str):
        return part.encode("utf-8", "surrogatepass")
    if isinstance(part, list):
        return b"".join(map(to_json, part))
    return to_json(part)


class PrefixRouter:
    """Chooses replicas by their numbers.

    A request goes to the replica that holds the longest beginning of its prompt, at least half of it, or of several
    that do to the one with the least load, as long as that has no more than BOUND times the mean load then (Mirrokni
    et al., "Consistent Hashing with Bounded Loads", 2018). Others go to the one with the least load, in turns.
    """

    def __init__(self) -> None:
        self._holders: OrderedDict[int, int] = OrderedDict()  # of each block a bit for each replica
        self._given = Counter[int]()  # prompts that went to a replica because of its load

    def choose(self, blocks: Sequence[int], loads: Mapping[int, int], wanted: int | None = None) -> int:
        """One of the replicas whose loads, requests under way, are given; it is remembered for the blocks.

        It is the `wanted` one if that is among them.
        """
        if wanted is not None and wanted in loads:
            self._remember(blocks, wanted)
            return wanted
        most = max(FEW, math.ceil(BOUND * (sum(loads.values()) + 1) / len(loads)))
        chosen = self._holder(blocks, {one: load for one, load in loads.items() if load < most})
        if chosen is None:
            chosen = min(loads, key=lambda one: (loads[one], self._given[one]))
            self._given[chosen] += 1
        self._remember(blocks, chosen)
        return chosen

    def _holder(self, blocks: Sequence[int], loads: Mapping[int, int]) -> int | None:
        """The replica that holds most of a prompt, if one of these holds half of it."""
        seen = 0
        for i in reversed(range(max(0, (len(blocks) - 1) // 2), len(blocks))):
            bits = self._holders.get(blocks[i], 0)
            if bits & ~seen:
                seen |= bits
                if able := [one for one in loads if bits >> one & 1]:
                    return min(able, key=loads.__getitem__)
        return None

    def forget(self, replica: int) -> None:
        """A replica holds nothing any more, as it is another process."""
        for block, bits in self._holders.items():
            self._holders[block] = bits & ~(1 << replica)

    def _remember(self, blocks: Iterable[int], replica: int) -> None:
        holders = self._holders
        for block in blocks:
            holders[block] = holders.get(block, 0) | 1 << replica
            holders.move_to_end(block)
        while len(holders) > MOST_BLOCKS:
            holders.popitem(last=False)
