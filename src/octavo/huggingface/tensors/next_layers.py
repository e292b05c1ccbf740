"""Layers that guess tokens, which some checkpoints have under `mtp.`: here they lie behind the model's own, as in GGUF.

In some of these checkpoints all of a layer is in `mtp.layers.N`; in others what joins the embedding and the hidden
state lies outside of it, and there is one layer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

from octavo.models import Architecture

log = logging.getLogger("octavo")

MTP = "mtp."
OUTSIDE = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
"""Modules outside of the layer, and what they are called in layers that have them."""
_LAYER = re.compile(r"mtp\.layers\.(0|[1-9][0-9]{0,3})\.(.+)")


def count_layers(names: Iterable[str], architecture: Architecture) -> int:
    """How many of these layers there are by the names of a checkpoint's tensors; a line in the log tells which are left
    out."""
    plain = [name for name in map(architecture.plain_name, names) if name.startswith(MTP)]
    numbers = {int(found[1]) for name in plain if (found := _LAYER.fullmatch(name)) is not None}
    shares = any(name.removeprefix(MTP).startswith(tuple(f"{module}." for module in OUTSIDE)) for name in plain)
    if numbers == set(range(len(numbers))) and not (shares and len(numbers) > 1):
        return len(numbers)
    log.info("mtp: layers %s are left out (allowed: 0 and on, or one with mtp.fc)", sorted(numbers))
    return 0


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
        if (layer := _LAYER.fullmatch(plain)) is not None:
            return _of(int(layer[1]), layer[2])
        module, _, end = plain.removeprefix(MTP).rpartition(".")
        return _of(0, f"{OUTSIDE[module]}.{end}") if module in OUTSIDE else None

    def _of(number: int, part: str) -> str | None:
        return f"{architecture.base}{architecture.layer}.{n_layer + number}.{part}" if number < count else None

    return behind
