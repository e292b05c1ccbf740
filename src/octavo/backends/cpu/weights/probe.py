"""Where a format keeps its codes, found out by asking its unpack function about one bit at a time.

Packing weights straight from their blocks is several times as fast as unpacking them first. What it takes is a map from
the bits of a block to the bits of its codes; deriving it from the format's own row keeps that row the only definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from octavo.backends.cpu.weights.layout import STEP
from octavo.formats.spec import U8, AnyArray, BlockFormat, Planes

PIECE = np.dtype([("offset", "u4"), ("right", "u4"), ("mask", "u4"), ("left", "u4")])


@dataclass(frozen=True, eq=False)
class CodeMap:
    """How to gather four codes at a time.

    pieces       PIECE [words, pieces]: code word w is the OR of ((4 bytes at offset) >> right & mask) << left, XOR base
                 (of blocks of fewer than 32 codes, words are those of all that 32 codes take)
    base         flips bits of every code word (signed codes are kept unsigned)
    code_fields  the fields that hold codes
    """

    pieces: npt.NDArray[np.void]
    base: int
    code_fields: frozenset[str]

    @property
    def runs(self) -> bool:
        """Whether words 0 to 3, 4 to 7 and so on each lie in 16 consecutive bytes, moved alike."""
        fours = self.pieces.reshape(-1, 4, self.pieces.shape[1])
        steps = fours["offset"] - fours["offset"][:, :1] == 4 * np.arange(4)[:, None]
        alike = [fours[name] == fours[name][:, :1] for name in ("right", "mask", "left")]
        return bool(steps.all() and np.all(alike))


def _identity() -> CodeMap:
    pieces = np.zeros((8, 1), PIECE)
    pieces["offset"][:, 0], pieces["mask"] = 4 * np.arange(8), 0xFFFFFFFF
    return CodeMap(pieces, 0, frozenset())


UNPACKED = _identity()
"""The map of codes that are bytes already, in blocks of 32."""


@cache
def code_map(fmt: BlockFormat) -> CodeMap | None:
    """The map of a format, or None where four neighbouring codes do not lie in four neighbouring bytes."""
    q = planes_of(fmt, one_bit_each(fmt)).q
    base = q[-1]
    if (base != base[0]).any():
        return None
    changed = q[:-1] ^ base
    found: list[dict[tuple[int, int, int], int]] = [{} for _ in range(fmt.block // 4)]
    code_bits = np.flatnonzero(changed.any(axis=1))
    for bit in code_bits:
        codes = np.flatnonzero(changed[bit])
        value = int(changed[bit, codes[0]])
        if len(codes) != 1 or value & (value - 1):
            return None
        word, lane = divmod(int(codes[0]), 4)
        target = value.bit_length() - 1
        start = int(bit) // 8 - lane
        if start < 0 or start + 4 > fmt.block_bytes:
            return None
        shift = int(bit) % 8 - target
        key = start, max(shift, 0), max(-shift, 0)
        found[word][key] = found[word].get(key, 0) | 1 << (8 * lane + target - max(-shift, 0))
    if sum(len(keys) for keys in found) > 2 * len(found):
        return None
    pieces = np.zeros((len(found), max(len(keys) for keys in found)), PIECE)
    for word, keys in enumerate(found):
        for i, ((start, right, left), mask) in enumerate(keys.items()):
            pieces[word, i] = start, right, mask, left
    pieces = np.concatenate([pieces] * max(1, STEP // fmt.block))
    pieces["offset"] += (np.arange(len(pieces)) * 4 // fmt.block * fmt.block_bytes).astype(np.uint32)[:, None]
    return CodeMap(pieces, int(base[0]) * 0x01010101, _fields_of(fmt, code_bits))


def one_bit_each(fmt: BlockFormat) -> U8:
    """Blocks with one bit set each, in order, and a block of zeros after them."""
    bits = np.arange(8 * fmt.block_bytes)
    blocks = np.zeros((len(bits) + 1, fmt.block_bytes), np.uint8)
    blocks[bits, bits // 8] = 1 << (bits % 8)
    return blocks


def planes_of(fmt: BlockFormat, blocks: U8) -> Planes:
    """The planes of blocks [n, bytes], n rows of one block each."""
    with np.errstate(all="ignore"):
        return fmt.unpack(fields(fmt, blocks[:, None]))


def _fields_of(fmt: BlockFormat, bits: npt.NDArray[np.intp]) -> frozenset[str]:
    names = [f.name for f in fmt.fields for _ in range(8 * f.nbytes)]
    return frozenset(names[b] for b in bits)


def fields(fmt: BlockFormat, blocks: U8, without: frozenset[str] = frozenset()) -> dict[str, AnyArray]:
    """The fields of packed blocks [..., blocks, bytes]; those of `without` with no values in them."""
    out, offset = {}, 0
    for f in fmt.fields:
        if f.name in without:
            out[f.name] = np.empty((*blocks.shape[:-1], 0), f.dtype)
        else:  # copied a whole field at a time: byte by byte takes ten times as long
            whole = np.dtype({"names": ["x"], "formats": [f"V{f.nbytes}"], "offsets": [offset],
                              "itemsize": fmt.block_bytes})
            raw = np.ascontiguousarray(blocks.view(whole)["x"])
            out[f.name] = raw.view(np.uint8).reshape(*blocks.shape[:-1], f.nbytes).view(f.dtype)
        offset += f.nbytes
    return out


def unpack_scales(fmt: BlockFormat, rows: U8, without: frozenset[str]) -> Planes:
    """The planes of rows uint8 [n, bytes of a row] but for their codes."""
    return fmt.unpack(fields(fmt, rows.reshape(len(rows), -1, fmt.block_bytes), without))
