"""Where each bit of a block comes from, found out by asking the format's pack function about one bit at a time.

An encoder's kernel keeps a block's codes, small scales and small minima as bytes, one after the other; every packing is
then an exclusive or of shifted and masked words of these. Deriving it keeps the format's row the only definition.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from octavo.formats import BlockFormat, Planes, pack
from octavo.formats.spec import U8

_BITS = 8


@dataclass(frozen=True)
class PackedPiece:
    """((4 bytes at `source`) & mask) << left (right where `left` is negative)."""

    source: int
    mask: int
    left: int


@dataclass(frozen=True)
class Word:
    """Four bytes of a block at `offset`: `base`, with each piece XORed in."""

    offset: int
    base: int
    pieces: tuple[PackedPiece, ...]


@dataclass(frozen=True)
class BlockLayout:
    """A block as a kernel writes it.

    The source is `block` bytes of codes, then `scales` bytes of small scales and, with minima, as many of those. Words
    are in ascending order, and one may reach past the end of its field into the next, which comes after it.

    scales     bytes of small scales; where there is one level but its scale is a byte, that
    scale_at   where the f16 scale lies, or -1
    min_at     where the f16 minimum lies, or -1
    min_sign   -1 where what is stored is added, 1 where it is taken away
    """

    block: int
    scales: int
    nbytes: int
    words: tuple[Word, ...]
    scale_at: int
    min_at: int
    min_sign: float


@cache
def block_layout(fmt: BlockFormat) -> BlockLayout:
    """The layout of a format whose floating scales are f16, or the bytes of powers of two."""
    zero = _planes(fmt)
    base = pack(zero, fmt)
    flips = defaultdict(list)  # bit of the block -> bits of the source
    for name, at, bits in _sources(fmt, zero):
        changed = np.unpackbits(pack(_probes(zero, name, bits), fmt) ^ base, axis=-1, bitorder="little")
        for probe, out in np.argwhere(changed):
            i, bit = divmod(int(probe), bits)
            flips[int(out)].append((at + i) * _BITS + bit)
    scale_at, min_at, sign = _float_fields(fmt, zero, base)
    scales = 0 if zero.sc is None else zero.sc.shape[-1]
    if _is_byte(fmt, scale_at):
        flips.update({(scale_at * _BITS + bit): [fmt.block * _BITS + bit] for bit in range(_BITS)})
        scales, scale_at = 1, -1
    return BlockLayout(fmt.block, scales, fmt.block_bytes, tuple(_words(fmt, base, flips)), scale_at, min_at, sign)


def _planes(fmt: BlockFormat) -> Planes:
    """A block of zeros."""
    one = np.zeros(fmt.block // fmt.super, np.float32)
    planes = Planes(np.zeros(fmt.block, np.uint8), d=one, dmin=one.copy() if fmt.has_min else None)
    if fmt.super == fmt.group:
        return planes
    groups = fmt.block // fmt.group
    sc = np.zeros(groups, np.uint8 if fmt.has_min else np.int8)
    return replace(planes, sc=sc, m=np.zeros(groups, np.uint8) if fmt.has_min else None)


def _sources(fmt: BlockFormat, planes: Planes) -> list[tuple[str, int, int]]:
    """Each plane of bytes, where it lies in the source, and its bits."""
    found, at = [("q", 0, fmt.bits)], fmt.block
    for name in ("sc", "m"):
        plane = getattr(planes, name)
        if plane is not None:
            found.append((name, at, fmt.scale_bits))
            at += plane.shape[-1]
    return found


def _probes(zero: Planes, name: str, bits: int) -> Planes:
    """A row of zeros for each bit of a plane's values, in which that bit is set."""
    plane = getattr(zero, name)
    count = plane.shape[-1]
    ones = np.zeros((count, bits, count), np.uint8)
    ones[np.arange(count), :, np.arange(count)] = 1 << np.arange(bits)
    rows = {
        other: np.broadcast_to(value, (count * bits, *value.shape)).copy()
        for other, value in vars(zero).items() if value is not None
    }
    return Planes(**(rows | {name: ones.reshape(-1, count).view(plane.dtype)}))


def _float_fields(fmt: BlockFormat, planes: Planes, base: U8) -> tuple[int, int, float]:
    """Where the scale and the minimum lie, and the sign that the minimum is stored with."""
    assert planes.d is not None
    changed = int((pack(replace(planes, d=planes.d + 1), fmt) != base).argmax())
    scale_at = changed if _is_byte(fmt, changed) else changed - 1  # 1.0 is 0x3C00: its low byte is that of 0.0
    if planes.dmin is None:
        return scale_at, -1, 1.0
    with_min = pack(replace(planes, dmin=planes.dmin + 1), fmt)
    min_at = int((with_min != base).argmax()) - 1
    return scale_at, min_at, -1.0 if with_min[min_at + 1] & 0x80 else 1.0


def _is_byte(fmt: BlockFormat, at: int) -> bool:
    """Whether the field at a byte of a block has values of one byte."""
    ends = np.cumsum([f.nbytes for f in fmt.fields])
    return fmt.fields[int(np.searchsorted(ends, at, side="right"))].dtype.itemsize == 1


def _words(fmt: BlockFormat, base: U8, flips: dict[int, list[int]]) -> list[Word]:
    words, offset = [], 0
    padded = np.concatenate([base, np.zeros(4, np.uint8)])
    for field in fmt.fields:
        for at in range(offset, offset + field.nbytes, 4):
            inside = min(32, (offset + field.nbytes - at) * _BITS)
            masks: dict[tuple[int, int], int] = defaultdict(int)
            for out in range(inside):
                for source in flips.get(at * _BITS + out, ()):
                    word, bit = source // 32 * 4, source % 32
                    masks[word, out - bit] |= 1 << bit
            start = int(padded[at : at + 4].view("<u4")[0]) & ((1 << inside) - 1)
            words.append(Word(at, start, tuple(PackedPiece(w, m, left) for (w, left), m in masks.items())))
        offset += field.nbytes
    return words
