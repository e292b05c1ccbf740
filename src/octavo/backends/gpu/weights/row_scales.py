"""Weights that have a scale for each row."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from octavo.backends.cores import cores
from octavo.formats import QTensor, unpack
from octavo.formats.codec import chunks
from octavo.formats.rows import pack_int4

log = logging.getLogger("octavo")

CHUNK_VALUES = 1 << 22


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
    n, k = tensor.shape
    fmt, stored = tensor.format, tensor.stored()
    width = k if fmt.bits == 8 else k // 2
    codes, scale = np.empty((n, width), np.uint8), np.empty(n, np.float32)
    groups = np.empty((k // fmt.group, n), np.float16).T if fmt.folds else None

    def work(part: slice) -> None:
        planes = unpack(QTensor(fmt, (part.stop - part.start, k), stored.rows(part)))
        assert planes.d is not None
        scale[part] = planes.d[:, 0]
        if fmt.bits == 4:
            codes[part] = pack_int4(planes.q ^ np.uint8(8))
        elif fmt.number is None:
            codes[part] = planes.q ^ np.uint8(0x80)
        else:  # some tensor cores take NaN for a number
            codes[part] = planes.q
            scale[part][np.isnan(fmt.number.decode(planes.q)).any(axis=1)] = np.nan
        if groups is not None:
            assert planes.sc is not None
            groups[part] = planes.sc

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(work, chunks(n, k, CHUNK_VALUES)))
    if not np.isfinite(scale).all():
        log.warning("tensor %s holds NaN or Inf", tensor.name)
    on = torch.from_numpy(codes).to(device)
    typed = on if fmt.bits == 4 else on.view(torch.float8_e4m3fn if fmt.number is not None else torch.int8)
    return RowWeight(
        n, k, typed, torch.from_numpy(scale).to(device),
        None if groups is None else torch.from_numpy(groups).to(device),
    )


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
