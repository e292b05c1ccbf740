"""Weights that have a scale for each row."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from octavo.backends.gpu.weights.load import Rows, device_planes
from octavo.formats import QTensor
from octavo.formats.rows import pack_int4

log = logging.getLogger("octavo")


@dataclass(eq=False)
class RowWeight:
    """Weights [n, k]: `codes` are int8 or float8_e4m3fn [n, k], or uint8 [n, k / 2] as `ops.w4a8` packs them.

    scale   float32 [n]
    groups  float16 [n, k / 128], those of neighbouring rows side by side, or None
    """

    n: int
    k: int
    codes: torch.Tensor
    scale: torch.Tensor
    groups: torch.Tensor | None

    @property
    def layout(self) -> tuple[torch.dtype, int, bool]:
        """What weights have in common that can be joined."""
        return self.codes.dtype, self.k, self.groups is not None


def load_rows(tensor: QTensor, device: str) -> RowWeight:
    """A matrix of a format of rows on the device."""
    (n, k), fmt = tensor.shape, tensor.format
    parts = Rows(n)
    for rows, planes in device_planes(tensor, device):
        q, scale = (cast(Any, part) for part in (planes.q, planes.d))
        if fmt.bits == 4:
            q = pack_int4(q ^ np.uint8(8))
        elif fmt.number is None:
            q = q ^ np.uint8(0x80)
        else:  # some tensor cores take NaN for a number
            lost: Any = np.isnan(fmt.number.decode(q)).any(axis=1)
            scale = np.where(lost[:, None], np.float32(np.nan), scale)
        parts.put(rows, {"codes": q, "scale": scale, **({"groups": planes.sc} if fmt.folds else {})})
    codes, scale, groups = (parts.whole.get(name) for name in ("codes", "scale", "groups"))
    assert codes is not None
    assert scale is not None
    if not bool(scale.isfinite().all()):
        log.warning("tensor %s holds NaN or Inf", tensor.name)
    typed = codes if fmt.bits == 4 else codes.view(torch.float8_e4m3fn if fmt.number is not None else torch.int8)
    return RowWeight(n, k, typed, scale.view(n), None if groups is None else groups.t().contiguous().t())


def joined_rows(weights: Sequence[RowWeight]) -> RowWeight:
    """Weights of one layout as one, their rows one after the other. They become views of its tensors, so that nothing
    is kept twice."""
    first, groups = weights[0], [w.groups for w in weights if w.groups is not None]
    whole = RowWeight(
        sum(w.n for w in weights), first.k,
        torch.cat([w.codes.view(torch.uint8) for w in weights]).view(first.codes.dtype),
        torch.cat([w.scale for w in weights]), torch.cat([g.t() for g in groups], dim=1).t() if groups else None,
    )
    row = 0
    for w in weights:
        rows = slice(row, row + w.n)
        w.codes, w.scale = whole.codes[rows], whole.scale[rows]
        w.groups = None if whole.groups is None else whole.groups[rows]
        row += w.n
    return whole
