"""Layers that guess tokens, which some checkpoints have under `mtp.`: here they lie behind the model's own, as in GGUF.

In some of these checkpoints all of a layer is in `mtp.layers.N`; in others what joins the embedding and the hidden
state lies outside of it, and there is one layer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

from octavo.errors import ModelError, shown
from octavo.models import Architecture

log = logging.getLogger("octavo")

MTP = "mtp."
OUTSIDE = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
"""Modules outside of the layer, and what they are called in layers that have them."""
_LAYER = re.compile(r"mtp\.layers\.(0|[1-9][0-9]{0,3})\.(.+)")


def count_layers(names: Iterable[str], architecture: Architecture) -> int:
    """How many of these layers there are by the names of a checkpoint's tensors; a line in the log tells which tensors
    belong to none. Raises ModelError for layers that can't be told apart, and for two tensors of one place."""
    found, others, numbers = dict[tuple[int, str], str](), list[str](), set[int]()
    for name in names:
        plain = architecture.plain_name(name)
        if not plain.startswith(MTP):
            continue
        if (place := _place(plain)) is None:
            others.append(name)
        elif place in found:
            raise ModelError(f"has the place of {shown(found[place])}, too", field=f"tensor {shown(name)}")
        else:
            found[place] = name
            numbers |= {place[0]} if _LAYER.fullmatch(plain) else set()
    if others:
        more = f" and {len(others) - 1} more are" if len(others) > 1 else " is"
        log.warning("tensor %s%s left out: no layer that guesses tokens has such", shown(others[0]), more)
    shares = any(_LAYER.fullmatch(architecture.plain_name(name)) is None for name in found.values())
    if numbers == ({0} if shares else set(range(len(numbers)))):
        return len(numbers)
    raise ModelError(f"has layers {sorted(numbers)}", field="mtp", allowed="0 and on, or 0 alone beside mtp.fc")


def names_behind(
    named: Callable[[str], str | None], architecture: Architecture, n_layer: int, count: int
) -> Callable[[str], str | None]:
    """As `named`, the name of a tensor in the text model, where that of these layers has a number from `n_layer` on;
    None for one of none of `count` layers."""

    def behind(name: str) -> str | None:
        found = named(name)
        plain = None if found is None else architecture.plain_name(found)
        if plain is None or not plain.startswith(MTP):
            return found
        number, part = _place(plain) or (count, "")
        return f"{architecture.base}{architecture.layer}.{n_layer + number}.{part}" if number < count else None

    return behind


def _place(plain: str) -> tuple[int, str] | None:
    """The layer that a tensor belongs to, and its name in there; None for one of no layer."""
    if (layer := _LAYER.fullmatch(plain)) is not None:
        return int(layer[1]), layer[2]
    module, _, end = plain.removeprefix(MTP).rpartition(".")
    return (0, f"{OUTSIDE[module]}.{end}") if module in OUTSIDE else None
