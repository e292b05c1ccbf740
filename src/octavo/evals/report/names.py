"""Where a tensor stands in a model, by its name: its layer, its kind, and what pictures call it."""

from __future__ import annotations

from typing import NamedTuple

from octavo.graph.names import split_layer


class Place(NamedTuple):
    """The layer of a tensor, None where it is in none, and its kind: its name without layer and "weight"."""

    layer: int | None
    kind: str


def place(name: str) -> Place:
    """ "blk.3.ffn_down.weight" is Place(3, "ffn_down"), "output.weight" is Place(None, "output")."""
    layer, within = split_layer(name)
    return Place(layer, within.removesuffix(".weight"))


def label(text: str, most: int = 24) -> str:
    """A name as pictures show it: plain ASCII, which every font has, and not too long."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return plain if len(plain) <= most else plain[: most - 3] + "..."
