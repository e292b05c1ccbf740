"""Weights of a kind in neighbouring layers, which are measured together where there are too many to take one by one."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.graph.names import split_layer


def layer_groups(names: Iterable[str], most: int) -> list[list[str]]:
    """The weights `names` in groups, by kind and then by layer: each alone if there are at most `most`.

    Otherwise groups hold as few neighbouring layers as makes at most `most` of them, or a whole kind each. A weight of
    no layer is a group of its own.
    """
    kinds: dict[str, list[str]] = {}
    for name in sorted(names, key=_layer):
        kinds.setdefault(split_layer(name)[1], []).append(name)
    longest = max(map(len, kinds.values()), default=1)
    sizes = range(1, longest + 1)
    size = next((s for s in sizes if sum(-(-len(k) // s) for k in kinds.values()) <= most), longest)
    return [kind[i : i + size] for kind in kinds.values() for i in range(0, len(kind), size)]


def _layer(name: str) -> int:
    layer, _ = split_layer(name)
    return -1 if layer is None else layer
