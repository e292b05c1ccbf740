"""Where a run stage by stage lies: bytes of values that are kept, and of a device on which weights are made."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from octavo.evals.layerwise.values import DTYPES
from octavo.graph.node import Sizes, bind
from octavo.graph.protocol import Backend, TensorBackend
from octavo.graph.stages import Stage
from octavo.quantizers.placed import VALUES

ARRAYS = 12
"""Arrays of a weight's size in float32 that there are while one is made."""
MATRICES = 6
"""Matrices [K, K] in float64 that there are then."""
IN_MEMORY = 1 << 28
"""Bytes of a stream's values of all samples up to which they are in memory though a run has a folder: writing them to a
disk takes as long as a small model's stages. A run that goes on makes them once more."""


def placed(
    backend: Backend, stages: Sequence[Stage], limits: Sizes, kept: int, streams: int
) -> tuple[str | None, bool]:
    """The device on which weights are made, None for the host, and whether values stay in its memory.

    limits  the largest sizes of a step
    kept    bytes of the values of all samples
    """
    if not isinstance(backend, TensorBackend):
        return None, False
    most, free = _largest(backend, stages, limits, streams), backend.free()
    return (backend.device, most + kept <= free) if most <= free else (None, False)


def _largest(backend: TensorBackend, stages: Sequence[Stage], limits: Sizes, streams: int) -> int:
    """Bytes of a device's memory, at most, while a stage runs there or its weights are made, beside kept values."""
    shapes = [p.inputs[0].tensor.shape for stage in stages for p in stage.products]
    weights = max((4 * sum(math.prod(p.inputs[0].tensor.shape) for p in s.products) for s in stages), default=0)
    steps = max((backend.needs(s.graph().nodes, limits) for s in stages if s.gives), default=0)
    values = ((*s.takes.values(), *s.gives.values()) for s in stages)
    steps += max(12 * sum(math.prod(bind(n.shape, limits)) for n in nodes) for nodes in values)
    matrices = MATRICES * (streams + 1) // 2
    made = max((8 * matrices * k**2 + 4 * ARRAYS * min(n * k, max(VALUES, k)) for *_, n, k in shapes), default=0)
    return weights + max(steps, made)


def kept_bytes(stages: Sequence[Stage], sizes: Sizes, streams: int) -> int:
    """Bytes of the values of all samples, of which there are `sizes`, at most: as `Values` takes them in memory."""
    total = top = 0
    spare, held = set[int](), dict[int, int]()
    item = {name: np.dtype(kind).itemsize for name, kind in DTYPES.items()}
    for stage in stages:
        for n, node in stage.gives.items():
            held[n] = math.prod(bind(node.shape, sizes)) * item[node.dtype]
            total += 0 if held[n] in spare else held[n]
            spare.discard(held[n])
        top = max(top, total)
        later = {n for s in stages[stage.number + 1 :] for n in s.takes}
        for n in held.keys() - later:
            size = held.pop(n)
            total -= size if size in spare else 0
            spare.add(size)
    return streams * top
