"""Tensors of a fold, changed: with scales, or with channels in another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from octavo.calibrate.fold.fold import ChannelFold, FoldPart, reordered, scaled
from octavo.calibrate.fold.region import Ints
from octavo.formats.spec import F32

Tensors = Mapping[str, F32]


def changed(fold: ChannelFold, tensors: Tensors, change: Callable[[FoldPart, F32], F32]) -> dict[str, F32]:
    """The tensors of a fold, each part changed; other tensors need not be there."""
    out: dict[str, F32] = {}
    for part in fold.parts:
        out[part.tensor] = change(part, out.get(part.tensor, tensors[part.tensor]))
    return out


def apply(fold: ChannelFold, scales: npt.ArrayLike, tensors: Tensors) -> dict[str, F32]:
    """The tensors that a fold changes, for `scales` [size], none of them 0 (arXiv 2211.10438, section 4)."""
    exact = np.asarray(scales, np.float64)
    return changed(fold, tensors, lambda part, values: scaled(part, exact, values))


def reorder(fold: ChannelFold, order: Ints, tensors: Tensors) -> dict[str, F32]:
    """The tensors of a fold of kind "orders" with channel order[i] in the place of channel i, all of the same block."""
    return changed(fold, tensors, lambda part, values: reordered(part, order, values))
