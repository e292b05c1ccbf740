"""How many keys and values are too large for the static scales of a KV cache, which cuts them off, by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo.errors import UsageError
from octavo.evals.windows import windows
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.formats.spec import F32, AnyArray
from octavo.graph.node import Node, is_static
from octavo.graph.schedule import root
from octavo.runtime import Model
from octavo.runtime.cache.page_pool import Sequence as CachedSequence
from octavo.runtime.engine.batch import Feed

ROUNDING = 1 + 2.0**-20
"""A number is cut off where it is over the largest by more than its scale was rounded."""


@dataclass(frozen=True)
class Saturation:
    """The keys, or the values, of a layer.

    name     as of the cache, "blk.0.cache_k"
    cut_off  numbers over the largest one, of `numbers`
    largest  magnitude over what the scale is for: above 1 it is cut off
    """

    name: str
    cut_off: int = 0
    numbers: int = 0
    largest: float = 0.0

    def more(self, x: F32, scales: F32, top: float) -> Saturation:
        """With x [T, Hkv, D] counted too, whose scales are float32 [Hkv]."""
        size: F32 = np.abs(x) / (scales[:, None] * np.float32(top))
        over = int((size > ROUNDING).sum())
        return replace(
            self, cut_off=self.cut_off + over, numbers=self.numbers + x.size,
            largest=max(self.largest, float(size.max())),
        )


def saturation(
    model: Model, tokens: Sequence[int], *, context: int = 512, chunks: int | None = None,
    progress: Callable[[int, int], None] | None = None
) -> list[Saturation]:
    """What is cut off of keys and values over a text, in windows of `context` tokens; none where scales are dynamic.

    `progress` is told windows done, of how many. Where the first one shows no static scales, the others are not run.
    The model's engine must not fuse ops (`EngineConfig.fuse`). Raises UsageError for one that does, and as `windows`
    does.
    """
    if model.engine.config.fuse:
        raise UsageError("the model's ops are fused, which hides keys: use EngineConfig(fuse=False)")
    found: dict[str, Saturation] = {}

    def watch(node: Node, read: Callable[[int], AnyArray]) -> None:
        if node.op == "set_rows" and is_static(root(node)):
            scales, top = root(node).attrs["static"], CACHE_FORMATS[node.dtype].top
            found[node.name] = found.get(node.name, Saturation(node.name)).more(read(1), scales, top)

    most = model.engine.limits["tokens"]
    parts = windows(model, tokens, context, chunks)
    for i, window in enumerate(parts):
        sequence = CachedSequence()
        try:
            for start in range(0, len(window.tokens), most):
                model.engine.step([Feed(sequence, window.tokens[start : start + most], 0)], watch)
        finally:
            model.engine.release(sequence)
        if not found:
            break
        if progress is not None:
            progress(i + 1, len(parts))
    return list(found.values())
