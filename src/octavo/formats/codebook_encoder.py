"""Values to planes of a format with a codebook, the plain way: the nearest entry at the scale that fits a group's peak.

As all of `encoders`, this searches for no better scale and knows no importance weights.
"""

from __future__ import annotations

import numpy as np

from octavo.formats.codebook import SIGNED, Codebook, gather, parity, spread
from octavo.formats.encoders import as_f16, by_groups, flat_groups, inverse
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Planes

ROOM = 0.8
"""Where a group's peak is put, as a share of the codebook's largest value: few entries have several large values."""


def nearest_entries(fmt: BlockFormat, x: F32) -> Planes:
    """Every format with a codebook."""
    assert fmt.codebook is not None
    assert fmt.table is not None
    table = np.array(fmt.table, np.float32) * np.float32(fmt.step)
    groups = by_groups(x, fmt.group)
    wanted = np.abs(groups).max(axis=-1) / (table.max() * np.float32(1 if fmt.codebook.shared else ROOM))
    top = 2 * (1 << fmt.scale_bits) - 1
    of_super = by_groups(wanted, fmt.super // fmt.group)
    d = as_f16(of_super.max(axis=-1) / np.float32(top))
    s = np.clip(np.rint((of_super * inverse(d[..., None]) - 1) / 2), 0, (top - 1) // 2)
    sc = flat_groups((2 * s + 1).astype(np.int8))
    scale = np.repeat(d, fmt.super // fmt.group, axis=-1) * sc.astype(np.float32)
    y = flat_groups(groups * inverse(scale[..., None]))  # values in units of the table
    index, signs = (_shifted if fmt.codebook.shared else _with_signs)(fmt, table, y)
    return Planes(fmt.codebook.codes(index, signs), d=d, sc=sc)


def _nearest(codebook: Codebook, values: F32, y: F32) -> tuple[AnyArray, F32]:
    """Indices of the entries nearest to y [..., vectors, width], whose sizes mean `values`, and the squared error."""
    entries = values[codebook.entries]  # [size, width]
    cost = np.sum(entries * entries, axis=-1) - 2 * (y @ entries.T)
    index = cost.argmin(axis=-1)
    return index.astype(np.uint16), np.square(y - entries[index]).sum(axis=-1)


def _with_signs(fmt: BlockFormat, table: F32, y: F32) -> tuple[AnyArray, U8]:
    """Signs are those of the values; where an even number must be negative, the smallest of eight may be flipped."""
    codebook = fmt.codebook
    assert codebook is not None
    signs = gather(y < 0)
    if codebook.even:
        octets = np.abs(by_groups(y, SIGNED))
        flip = np.uint8(1) << octets.argmin(axis=-1).astype(np.uint8)
        signs = signs ^ (flip * parity(signs))
    signed = np.where(spread(signs), -y, y)
    return _nearest(codebook, table[: 1 << codebook.bits], by_groups(signed, codebook.width))[0], signs


def _shifted(fmt: BlockFormat, table: F32, y: F32) -> tuple[AnyArray, U8]:
    """Of both shifts that a group can have, the one with the smaller error."""
    codebook = fmt.codebook
    assert codebook is not None
    half = 1 << codebook.bits
    vectors = by_groups(y, codebook.width)
    found = [_nearest(codebook, values, vectors) for values in (table[:half], table[half:])]
    left = [flat_groups(np.repeat(by_groups(e, fmt.group // 8).sum(axis=-1, keepdims=True), fmt.group // 8, axis=-1))
            for _, e in found]
    shifted = left[1] < left[0]
    return np.where(shifted, found[1][0], found[0][0]), shifted.astype(np.uint8) * np.uint8(255)
