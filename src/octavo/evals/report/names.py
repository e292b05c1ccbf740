"""Where a tensor stands in a model, by its name: its layer, its kind, and what pictures call it."""

from __future__ import annotations

import re
from typing import NamedTuple

_IN_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)", re.DOTALL)


class Place(NamedTuple):
    """The layer of a tensor, None where it is in none, and its kind: its name without layer and "weight"."""

    layer: int | None
    kind: str


def place(name: str) -> Place:
    """ "blk.3.ffn_down.weight" is Place(3, "ffn_down"), "output.weight" is Place(None, "output")."""
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return Place(None, name.removesuffix(".weight"))
    return Place(int(match[1]), match[2].removesuffix(".weight"))


def label(text: str, most: int = 24) -> str:
    """A name as pictures show it: plain ASCII, which every font has, and not too long."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return plain if len(plain) <= most else plain[: most - 3] + "..."
