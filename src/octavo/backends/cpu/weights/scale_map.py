"""Where a format keeps its scales, found out by asking its unpack function; see `probe` for why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from octavo.backends.cpu.weights.probe import one_bit_each, planes_of
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat

SMALL = np.dtype([("a", "u4"), ("b", "u4"), ("first", "u1", 256), ("second", "u1", 256)])


@dataclass(frozen=True, eq=False)
class ScaleMap:
    """Where the scales of a block lie.

    d, minimum  (offset, flip): the f16 at an offset, its bits XORed with flip; no minimum is (0, 0)
    small       SMALL [planes, groups]: a small scale is first[byte at a] XOR second[byte at b]
    """

    d: tuple[int, int]
    minimum: tuple[int, int]
    small: npt.NDArray[np.void]


@cache
def scale_map(fmt: BlockFormat) -> ScaleMap | None:
    """The map of a format, or None if a block has a floating scale other than f16 or a small one of three bytes."""
    blocks = np.random.default_rng(0).integers(0, 256, (64, fmt.block_bytes), dtype=np.uint8)
    planes, probes = planes_of(fmt, blocks), planes_of(fmt, one_bit_each(fmt))
    d = _place(fmt, blocks, planes.d)
    minimum = (0, 0) if planes.dmin is None else _place(fmt, blocks, planes.dmin)
    small = [
        _small(_as_u8(probed), blocks, _as_u8(found))
        for probed, found in ((probes.sc, planes.sc), (probes.m, planes.m))
        if probed is not None and found is not None
    ]
    if d is None or minimum is None or any(part is None for part in small):
        return None
    return ScaleMap(d, minimum, np.array(small, SMALL))


def _as_u8(plane: AnyArray) -> U8:
    return np.ascontiguousarray(plane).view(np.uint8)


def _place(fmt: BlockFormat, blocks: U8, scales: F32 | None) -> tuple[int, int] | None:
    """The field that holds the scales of some blocks, one each: its offset, and what flips its sign."""
    if scales is None or scales.size != len(blocks):
        return None
    offset = 0
    for f in fmt.fields:
        if f.dtype == np.dtype("<f2") and f.count == 1:
            halves = blocks[:, offset : offset + 2].copy().view("<u2")
            for flip in (0, 0x8000):
                with np.errstate(invalid="ignore"):  # random bits hold signalling NaN
                    values = (halves ^ np.uint16(flip)).view("<f2").astype(np.float32)
                if np.array_equal(scales.reshape(values.shape), values, equal_nan=True):
                    return offset, flip
        offset += f.nbytes
    return None


def _small(probed: U8, blocks: U8, found: U8) -> npt.NDArray[np.void] | None:
    """SMALL [groups], from the small scales of `one_bit_each`; None if it does not give those found in some blocks."""
    base, changed = probed[-1], probed[:-1] ^ probed[-1]
    out = np.zeros(probed.shape[1], SMALL)
    values = np.arange(256)
    for group in range(len(out)):
        places = np.unique(np.flatnonzero(changed[:, group]) // 8)
        if len(places) > 2:
            return None
        out[group]["first"] = base[group]
        for place, byte, table in zip(places, ("a", "b"), ("first", "second"), strict=False):
            out[group][byte] = place
            for bit in range(8):
                out[group][table] ^= np.where(values >> bit & 1, changed[8 * place + bit, group], 0).astype(np.uint8)
    read = [g["first"][blocks[:, g["a"]]] ^ g["second"][blocks[:, g["b"]]] for g in out]
    return out if np.array_equal(np.stack(read, axis=1), found) else None
