"""Static scales of activations, of what a text gives a product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.evals.layerwise import ProductInput
from octavo.formats.spec import F32
from octavo.quantizers.job.prepared import StaticInput
from octavo.quantizers.smoothing import static_scale
from octavo.quantizers.smoothing.static import TOPS

TOKENS = 512
"""With which scales are tried."""


def static_input(
    given: ProductInput, names: Sequence[str], weights: Sequence[F32], kind: str, most: float
) -> StaticInput:
    """The scale of an input whose products are with `weights` [N, K] of these names; `kind` is of its codes.

    most  times as much as with a scale for each token may products err, else the scale is not used
    """
    largest = max(float(np.abs(x).max()) for x in given.batches())
    x = np.asarray(given.vectors[np.linspace(0, len(given.vectors) - 1, TOKENS).astype(np.int64)], np.float32)
    found = static_scale(x, weights, largest, kind)
    beyond = np.float32(found.scale * (TOPS[kind] + 0.5 if kind.startswith("int8") else TOPS[kind]))
    over = sum(int((np.abs(x) > beyond).sum()) for x in given.batches())
    return StaticInput(
        tuple(names), found.scale, largest, over, given.vectors.size, found.before, found.after, found.dynamic,
        found.after <= most * found.dynamic,
    )  # fmt: skip
