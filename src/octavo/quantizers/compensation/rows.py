"""Rows in a format: as encoders make them, from which compensation goes out, and as it leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from octavo.formats import BlockFormat, Planes, QTensor, dequantize, pack, quantize_reference, unpack
from octavo.formats.spec import F32, U8
from octavo.quantizers.encoding.encoder import ENCODABLE, encode

ROWS = 16
"""Rows of a tile, on the CPU."""
LEAST_GAIN = 1e-5
"""Of a row's error: what compensation must gain at least to be taken."""


@dataclass(frozen=True, eq=False)
class Compensated:
    """Rows in a format, and what they lose.

    planes   of the rows [N, K]
    before   float32 [N]: e^T H e of each row as the encoder alone leaves it
    after    float32 [N]: of what is in `planes`; nowhere above `before`
    bound    what nearest levels can't exceed with these scales while no value is beyond the last level, damping
             included (Babai's bound of the lattice of H): the sum over all rows, before anything is refitted
    kept     rows that compensation made better; the others are the encoder's
    damping  that was added to the diagonal, over its mean
    """

    planes: Planes
    format: BlockFormat
    before: F32
    after: F32
    bound: float
    kept: int
    damping: float

    @cached_property
    def packed(self) -> U8:
        """uint8 [N, bytes of a row]."""
        return pack(self.planes, self.format)


def encoded(rows: F32, fmt: BlockFormat, weights: F32, threads: int | None) -> Planes:
    """What the format's own encoder makes of rows, errors weighted."""
    if fmt.name in ENCODABLE:
        packed = encode(rows, fmt, importance=weights, threads=threads)
        return unpack(QTensor(fmt, rows.shape, packed))
    return _searched(rows, fmt, weights)


SHRINKS = np.linspace(1.0, 0.55, 16, dtype=np.float32)
"""Parts of a group's range that its levels may span."""


def _searched(rows: F32, fmt: BlockFormat, weights: F32) -> Planes:
    """Rows by the format's plain encoder, each group clipped to the part of its range that leaves the least error."""
    groups = rows.reshape(len(rows), rows.shape[1] // fmt.group, fmt.group)
    low, high = groups.min(axis=2, keepdims=True, initial=0), groups.max(axis=2, keepdims=True, initial=0)
    weighing = weights.reshape(1, -1, fmt.group)
    best, clipped = np.full(groups.shape[:2], np.inf, np.float32), groups
    for shrink in SHRINKS:
        tried = np.clip(groups, low * shrink, high * shrink)
        got = dequantize(quantize_reference(tried.reshape(rows.shape), fmt)).reshape(groups.shape)
        error = (weighing * np.square(got - groups)).sum(axis=2)
        clipped = np.where((error < best)[..., None], tried, clipped)
        best = np.minimum(error, best)
    return unpack(quantize_reference(clipped.reshape(rows.shape), fmt))
