"""Names of weights and nodes: those of a layer begin with "blk." and its number."""

from __future__ import annotations

import re

_IN_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)", re.DOTALL)


def split_layer(name: str) -> tuple[int | None, str]:
    """The layer of what has this name, and its name within it.

    "blk.3.ffn_down.weight" is 3 and "ffn_down.weight"; what is in no layer has None and its whole name.
    """
    match = _IN_LAYER.fullmatch(name)
    return (int(match[1]), match[2]) if match else (None, name)
