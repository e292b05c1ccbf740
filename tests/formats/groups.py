"""Random tensors in rows of groups, and their values worked out from the planes in float64."""

from __future__ import annotations

import numpy as np

from octavo.formats import Planes, QTensor, pack
from octavo.formats.scalars import bf16_to_f32, f32_to_bf16
from octavo.formats.spec import BlockFormat


def random_planes(fmt: BlockFormat, n: int, k: int, seed: int = 0) -> Planes:
    """Planes [n, k] of every code, with scales and minima that the format stores exactly."""
    rng = np.random.default_rng(seed)
    q = rng.integers(0, 1 << fmt.bits, (n, k), dtype=np.uint8)
    shape = n, k // fmt.group
    d = stored(rng.uniform(0.002, 0.02, shape), fmt)
    middle = 1 << (fmt.bits - 1)
    dmin = stored(rng.uniform(0.9, 1.1, shape) * d * middle, fmt) if fmt.has_min else None
    top = min(255, 1 << fmt.bits)
    m = rng.integers(0, top + 1, shape, dtype=np.uint8) if fmt.has_zero else None
    return Planes(q, d=d, dmin=dmin, m=m)


def stored(values: np.ndarray, fmt: BlockFormat) -> np.ndarray:
    """float32 values rounded to the type of the format's scales."""
    field = fmt.fields[0]
    if field.kind == "bf16":
        return bf16_to_f32(f32_to_bf16(values.astype(np.float32)))
    return values.astype(field.dtype).astype(np.float32)


def random_tensor(fmt: BlockFormat, n: int, k: int, seed: int = 0) -> QTensor:
    return QTensor(fmt, (n, k), pack(random_planes(fmt, n, k, seed), fmt))


def values_of(planes: Planes, fmt: BlockFormat) -> np.ndarray:
    """The weights in float64, by the words of `formats.group`."""

    def each(plane: np.ndarray | None) -> np.ndarray:
        assert plane is not None
        return np.repeat(plane.astype(np.float64), fmt.group, axis=1)

    q, d = planes.q.astype(np.float64), each(planes.d)
    if fmt.has_zero:
        return d * (q - each(planes.m))
    return d * q - each(planes.dmin) if fmt.has_min else d * (q - (1 << (fmt.bits - 1)))
