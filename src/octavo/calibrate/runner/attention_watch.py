"""What a run looks at on the way: values that a stage writes to caches, and attentions of some samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.calibrate.arrays import on_host
from octavo.formats.spec import F32
from octavo.graph.node import Node, bind
from octavo.graph.protocol import Backend, TensorBackend
from octavo.graph.stages import Stage, input_name
from octavo.quantizers.statistics import ChannelStatistics


@dataclass(frozen=True)
class AttentionWatch:
    """Looks at the attention of some samples.

    tell    is given an attention as the whole graph has it, and a sample's q [T, H, D], k and v [T, Hkv, D] there, in
            memory that is written to again afterwards
    tokens  of all samples that are looked at, at most; but one sample is
    """

    tell: Callable[[Node, F32, F32, F32], None]
    tokens: int


def written(stage: Stage, given: Mapping[str, Any], made: Sequence[tuple[Backend, Any]]) -> Iterator[tuple[str, Any]]:
    """What a stage writes to caches, by their names: of what it is given, and of what it has made."""
    numbers = stage.taken
    results = dict(zip(stage.made, made, strict=False))
    for name, node in stage.written.items():
        if name in results:
            backend, value = results[name]
            yield name, value if isinstance(backend, TensorBackend) else backend.read(value)
        else:
            values = given[input_name(numbers[id(node)])]
            yield name, values


def to_host(values: Any) -> F32:
    """Values as a float32 array in memory."""
    return np.asarray(on_host(values), np.float32)


def spread(count: int, most: int) -> frozenset[int]:
    """At most `most` of 0 to `count`, evenly spread."""
    return frozenset(np.linspace(0, count - 1, min(most, count)).astype(int).tolist())


def statistics_of(name: str, x: Node) -> ChannelStatistics:
    """Statistics to count x [T, H, D] with, which is written to a cache."""
    heads, size = bind(x.shape[1:], {})
    return ChannelStatistics(heads, size, name)
