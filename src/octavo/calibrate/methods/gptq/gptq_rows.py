"""Rows in a format: as encoders make them, from which GPTQ goes out, and as it leaves them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from octavo.formats import BlockFormat, Planes, QTensor, decode, dequantize, pack, quantize_reference, unpack
from octavo.formats.encoders import as_f16
from octavo.formats.spec import F32, U8
from octavo.quantizers.encoding.encoder import ENCODABLE, encode
from octavo.quantizers.matrix_tiles import spans

ROWS = 16
"""Rows of a tile, on the CPU."""
LEAST_GAIN = 1e-5
"""The least share of its error that GPTQ must take off a row to be kept."""


@dataclass(frozen=True, eq=False)
class GptqRows:
    """Rows in a format, and what they lose.

    planes   of the rows [N, K]
    before   float32 [N]: e^T H e of each row as the encoder alone leaves it
    after    float32 [N]: of what is in `planes`; nowhere above `before`
    bound    what nearest levels can't exceed with these scales while no value is beyond the last level, damping
             included (Babai's bound of the lattice of H): the sum over all rows, before anything is refitted
    kept     rows that GPTQ made better; the others are the encoder's
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
AT_A_TIME = 1 << 17
"""Values of rows for which they are tried together: temporaries stay in caches."""


def _searched(rows: F32, fmt: BlockFormat, weights: F32) -> Planes:
    """Rows by the format's plain encoder, each group clipped to the part of its range that leaves the least error."""
    clipped, step = np.empty_like(rows), max(1, AT_A_TIME // max(rows.shape[1], 1))
    for part in spans(len(rows), step):
        _clip(rows[part], fmt, weights, clipped[part])
    return unpack(quantize_reference(clipped, fmt))


def _clip(rows: F32, fmt: BlockFormat, weights: F32, clipped: F32) -> None:
    """Fill `clipped` with rows [N, K], each group within the part of its range that leaves the least error."""
    groups = rows.reshape(len(rows), rows.shape[1] // fmt.group, fmt.group)
    low, high = groups.min(axis=2, keepdims=True, initial=0), groups.max(axis=2, keepdims=True, initial=0)
    weighing = weights.reshape(1, -1, fmt.group)
    best, chosen = np.full(groups.shape[:2], np.inf, np.float32), np.ones(groups.shape[:2], np.float32)
    within = clipped.reshape(groups.shape)

    def clip(shrink: F32 | np.float32) -> None:  # np.clip takes three times as long with bounds that are arrays
        np.minimum(np.maximum(groups, low * shrink, out=within), high * shrink, out=within)

    for shrink in SHRINKS:
        clip(shrink)
        error = stored_values(clipped, fmt).reshape(groups.shape)
        error -= groups
        np.square(error, out=error)
        error *= weighing
        found = error.sum(axis=2)
        chosen[found < best] = shrink
        best = np.minimum(found, best)
    clip(chosen[..., None])


def stored_values(values: F32, fmt: BlockFormat) -> F32:
    """What values [..., K] become in a format by its plain encoder: `quantize_reference` and `dequantize` in one.

    They are packed only where codes and scales in between are not those that are stored.
    """
    kind = fmt.fields[0].kind
    if fmt.encode is None or fmt.has_min or fmt.super != fmt.group or kind not in ("f16", "f32", "ue4m3"):
        return dequantize(quantize_reference(values, fmt))
    with np.errstate(all="ignore"):
        planes = fmt.encode(fmt, values)
        return decode(planes if kind != "f16" or planes.d is None else replace(planes, d=as_f16(planes.d)), fmt)
