"""The order of a batch's prompts: those that begin alike come one after the other, so that each prefix is read once.

A prompt has PREFIXES marks, checksums of its first bytes: up to lengths that grow by a third or a half, and to the end
of each of its first messages. Prompts that begin alike have the same marks as far as they do, so the marks sort them as
a tree of prefixes, without their texts in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

PREFIXES = 24
SHORTEST, OCTAVES = 64, 10
LENGTHS = [n << octave for octave in range(OCTAVES) for n in (SHORTEST, SHORTEST * 3 // 2)]
"""Bytes of a prompt: 64, 96, 128, 192 ... A page of the cache holds about 256."""
MESSAGES = 8
"""First messages at whose ends there is a mark."""


def prefix_marks(pieces: Sequence[bytes]) -> list[int]:
    """The marks of a prompt that comes in pieces, such as its messages: PREFIXES numbers of 32 bits."""
    text = b"".join(pieces)
    ends = {*accumulate(map(len, pieces[:MESSAGES])), *(n for n in LENGTHS if n <= len(text))}
    mark = at = 0
    found = list[int]()
    for end in sorted(ends)[:PREFIXES]:
        mark = crc32(text[at:end], mark)
        at = end
        found.append(mark)
    return found + [0] * (PREFIXES - len(found))


def prefix_order(marks: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The order [n] of prompts with marks [n, PREFIXES]: a tree of prefixes depth first, the earliest prompts first."""
    n = len(marks)
    group = np.zeros(n, np.uint64)
    for mark in marks.T:
        both = group << np.uint64(32) | mark.astype(np.uint64)
        _, first, inverse = np.unique(both, return_index=True, return_inverse=True)
        place = np.empty(len(first), np.uint64)
        place[np.lexsort((first, group[first]))] = np.arange(len(first), dtype=np.uint64)
        group = place[inverse]
        if len(first) == n:
            break
    return np.argsort(group, kind="stable")
