"""What a line of a batch may have in it, found out before any value of it becomes a Python object."""

from __future__ import annotations

import numpy as np

from octavo.server.http.body import MOST_PARTS, count_keys, count_values, outside_texts
from octavo.server.serve_options import Limits

AROUND = 4
"""Values, and one level, that OpenAI's form of a line has around a body."""
VALUES, DEPTH = Limits.values + AROUND, Limits.depth + 1
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
OTHERS = bytes(set(range(256)) - set(b"[{]}"))


def require_few_values(data: bytes) -> None:
    """Raise ApiError for more values, or keys, lists and objects, than the server takes of a body."""
    parts = data.count(b"[") + data.count(b"{")  # at most: texts may have them too
    if parts + data.count(b",") > VALUES:
        count_values(data, VALUES)
    if parts + data.count(b":") > MOST_PARTS:
        count_keys(data)


def too_deep(data: bytes) -> bool:
    """Whether JSON has more levels than the server takes of a body."""
    if data.count(b"[") + data.count(b"{") <= DEPTH:
        return False
    level = 0
    for outside in outside_texts(data):
        levels = np.cumsum(np.frombuffer(outside.translate(STEPS, OTHERS), np.int8), dtype=np.int64) + level
        if levels.size:
            if levels.max() > DEPTH:
                return True
            level = int(levels[-1])
    return False
