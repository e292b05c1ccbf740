"""Coded: a weight in a scheme as a checkpoint has it, codes and scales; rounded to nearest, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.errors import NonFiniteError, QuantFormatError
from octavo.formats import Planes, decode
from octavo.formats.codec import require_finite
from octavo.formats.encoders import as_f16
from octavo.formats.per_channel import group_scales
from octavo.formats.rows import FP8_TOP, GROUP, in_range, two_levels
from octavo.formats.scalars import f32_to_e4m3
from octavo.formats.spec import F32, U8, BlockFormat
from octavo.huggingface.schemes import CheckpointScheme

SLAB = 1 << 20
"""Values that are looked at together, about."""
NVFP4_TOP = 448.0 * 6.0
"""What the largest magnitude of a tensor becomes, so that scales of groups use all of e4m3's range."""


@dataclass(frozen=True, eq=False)
class Coded:
    """A weight [N, K].

    q       codes as planes of the scheme's row have them, uint8 [N, K]
    scales  float32 [N, groups], of blocks of rows [N / 128, K / 128]
    zeros   zero points uint8 [N, groups], or None
    factor  what values were multiplied by before all that, for the whole tensor
    """

    q: U8
    scales: F32
    zeros: U8 | None = None
    factor: float = 1.0

    def rows(self, part: slice, per: int = 1) -> Coded:
        """Some of the rows, of which `per` share a scale."""
        scales = self.scales[part.start // per : -(-part.stop // per)]
        return Coded(self.q[part], scales, None if self.zeros is None else self.zeros[part], self.factor)


def factor_of(scheme: CheckpointScheme, largest: float) -> float:
    """What values of a tensor are multiplied by, whose largest magnitude is `largest`."""
    if scheme.strategy != "tensor_group" or not largest > 0:
        return 1.0
    factor = np.float32(NVFP4_TOP / largest)
    beyond = factor * np.float32(largest) > NVFP4_TOP  # the product may round up
    return float(np.nextafter(factor, np.float32(0)) if beyond else factor)


def largest(values: F32) -> float:
    """The largest magnitude, 0 of none."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


def nearest(scheme: CheckpointScheme, values: F32, factor: float | None = None) -> Coded:
    """Values [N, K] rounded to nearest, with scales that the extremes ask for.

    factor  of `factor_of`; None: of these values

    Raises NonFiniteError for NaN and Inf, QuantFormatError for values that the scheme has no scales for.
    """
    factor = factor_of(scheme, largest(values)) if factor is None else factor
    return joined([_nearest(scheme, values[part], factor) for part in row_parts(*values.shape)])


def _nearest(scheme: CheckpointScheme, values: F32, factor: float) -> Coded:
    fmt = scheme.format(values.shape[1])
    require_finite(values, "values")
    if scheme.square:
        return _squares(values)
    assert fmt.encode is not None
    with np.errstate(all="ignore"):
        planes = fmt.encode(fmt, values if factor == 1 else values * np.float32(factor))
        assert planes.d is not None
        d = as_f16(planes.d) if fmt.fields[0].kind == "f16" else planes.d
    if not np.isfinite(d).all():
        raise QuantFormatError(f"the value {np.abs(values).max():g} is beyond the range of {fmt.name}'s scales")
    return Coded(planes.q, group_scales(values) if fmt.folds else d, planes.m, factor)


def row_parts(n: int, k: int) -> list[slice]:
    """Rows [N, K] that are looked at together: whole squares of about SLAB values, so that little is beside them."""
    step = GROUP * max(1, SLAB // (GROUP * max(k, 1)))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)] or [slice(0, 0)]


def joined(parts: list[Coded]) -> Coded:
    """Rows one after the other, of one factor."""
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    q, scales = (np.concatenate(columns) for columns in zip(*((part.q, part.scales) for part in parts), strict=True))
    return Coded(q, scales, np.concatenate(zeros) if zeros else None, parts[0].factor)


def _squares(values: F32) -> Coded:
    """e4m3 numbers with a scale for each 128 rows and columns."""
    n, k = values.shape
    scales = np.zeros((-(-n // GROUP), k // GROUP), np.float32)
    codes = np.empty((n, k), np.uint8)
    for i, rows in enumerate(range(0, n, GROUP)):
        blocks = values[rows : rows + GROUP].reshape(-1, k // GROUP, GROUP)
        top = FP8_TOP["e4m3"]
        scales[i] = np.abs(blocks).max(axis=(0, 2)) / np.float32(top)
        codes[rows : rows + GROUP] = f32_to_e4m3(in_range(blocks, scales[i][None], top)).reshape(len(blocks), k)
    return Coded(codes, scales)


def planes_of(scheme: CheckpointScheme, coded: Coded) -> tuple[Planes, BlockFormat]:
    """The planes that a loaded weight has, and their format; of all but `factor`."""
    n, k = coded.q.shape
    fmt = scheme.format(k)
    return row_planes(fmt, coded.q, coded.scales if not scheme.square else np.repeat(coded.scales, GROUP, 0)[:n],
                      coded.zeros), fmt


def row_planes(fmt: BlockFormat, q: U8, scales: F32, zeros: U8 | None = None) -> Planes:
    """Planes of a format of rows: codes uint8 [N, K], and the scales that a checkpoint has for them."""
    if not fmt.folds:
        return Planes(q, d=scales, m=zeros)
    channel, groups = two_levels(scales, np.abs(q.view(np.int8) - fmt.offset).max(axis=-1))
    return Planes(q, d=channel, sc=groups)


def values_of(scheme: CheckpointScheme, coded: Coded) -> F32:
    """float32 [N, K] as a model is computed with. Raises NonFiniteError where scales are beyond float32."""
    out = np.empty(coded.q.shape, np.float32)
    for part in row_parts(*coded.q.shape):
        values = decode(*planes_of(scheme, coded.rows(part, GROUP if scheme.square else 1)))
        if coded.factor != 1:
            values *= np.float32(1) / np.float32(coded.factor)
        if not np.isfinite(values).all():
            raise NonFiniteError("quantized values are beyond float32")
        out[part] = values
    return out
