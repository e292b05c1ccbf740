"""Where blocks of a format with a grid keep numbers, marks, scales and d: found by setting one bit at a time.

As `probe` does it for codes, so that the format's own row stays the only definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from octavo.backends.cpu.weights.probe import PIECE, fields, one_bit_each
from octavo.formats.spec import AnyArray, BlockFormat

PIECES = 4  # the most pieces that a value is put together from


@dataclass(frozen=True, eq=False)
class GridMap:
    """PIECE [values, PIECES] for each: a value is the OR of ((4 bytes at offset) >> right & mask) << left.

    numbers  of points, a shared mark above their bits
    marks    of 8 values each; the eighth makes their number even where the grid has it so
    scales   of groups: s, where 2 s + 1 is the scale
    d        the bits of an f16
    """

    numbers: npt.NDArray[np.void]
    marks: npt.NDArray[np.void]
    scales: npt.NDArray[np.void]
    d: npt.NDArray[np.void]


@cache
def grid_map(fmt: BlockFormat) -> GridMap:
    """The map of a format with a grid."""
    assert fmt.indexed is not None
    assert fmt.codebook is not None
    stored = fmt.indexed(fields(fmt, one_bit_each(fmt)[:-1, None]))
    d = stored.d.astype(np.float16).view(np.uint16)
    numbers, marks = stored.index, stored.signs
    if fmt.codebook.shared:
        bits = (len(fmt.codebook.keys) - 1).bit_length()
        numbers = numbers | ((marks & 1).astype(np.uint16) << np.uint16(bits))
    elif fmt.codebook.even:
        marks = marks & np.uint8(127)
    found = (numbers, marks, stored.sc.view(np.uint8) >> 1, d)
    return GridMap(*(_pieces(fmt, values.reshape(8 * fmt.block_bytes, -1)) for values in found))


def _pieces(fmt: BlockFormat, values: AnyArray) -> npt.NDArray[np.void]:
    """The pieces of values [bits of a block, n], what each is when that bit alone is set."""
    out = np.zeros((values.shape[1], PIECES), PIECE)
    for i, column in enumerate(values.T):
        for piece, (source, target, count) in enumerate(_runs(column)):
            at = min(source // 8, fmt.block_bytes - 4)
            out[i, piece] = at, source - 8 * at, (1 << count) - 1, target
    return out


def _runs(values: AnyArray) -> Iterator[tuple[int, int, int]]:
    """Runs of bits as (first bit of the block, first bit of the value, count)."""
    first = start = count = 0
    for bit in (int(b) for b in np.flatnonzero(values)):
        target = int(values[bit]).bit_length() - 1
        if count and bit == first + count and target == start + count:
            count += 1
            continue
        if count:
            yield first, start, count
        first, start, count = bit, target, 1
    if count:
        yield first, start, count
