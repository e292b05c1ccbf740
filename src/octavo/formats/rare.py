"""GGUF tensor types outside the table: their sizes, and loading them as plain numbers.

Codes of 1 and 2 bits with one level of scales are rare, and no kernel here is made for them. They load, but as F16, so
they take the memory and the speed of F16.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.codec import chunks, dequantize
from octavo.formats.qtensor import QTensor
from octavo.formats.spec import U8, AnyArray, BlockFormat, Planes, f16, u8
from octavo.formats.table import by_gguf_id, by_name
from octavo.formats.unpackers import flat, split_bits

_log = logging.getLogger("octavo")


def _unpack_q1_0(f: dict[str, AnyArray]) -> Planes:
    return Planes(flat(split_bits(f["qs"], run=1, bits=1)), d=flat(f["d"]).astype(np.float32))


def _unpack_q2_0(f: dict[str, AnyArray]) -> Planes:
    return Planes(flat(split_bits(f["qs"], run=1, bits=2)), d=flat(f["d"]).astype(np.float32))


# Rows as in the table, used for decoding only.
_OWN: dict[int, BlockFormat] = {
    41: BlockFormat("Q1_0", gguf=41, block=128, bits=1, group=128, super=128, table=(-1, 1),
                    fields=(f16("d"), u8("qs", 16)), unpack=_unpack_q1_0),
    42: BlockFormat("Q2_0", gguf=42, block=64, bits=2, group=64, super=64, offset=1,
                    fields=(f16("d"), u8("qs", 16)), unpack=_unpack_q2_0),
}

# id: name, values in a block, bytes of a block
RARE: dict[int, tuple[str, int, int]] = {number: (row.name, row.block, row.block_bytes) for number, row in _OWN.items()}

REMOVED: dict[int, str] = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}


def block_layout(gguf_id: int) -> tuple[int, int] | None:
    """Values and bytes of a block of this GGUF tensor type; None for a removed or unknown type."""
    if row := by_gguf_id(gguf_id):
        return row.block, row.block_bytes
    return RARE[gguf_id][1:] if gguf_id in RARE else None


def type_name(gguf_id: int) -> str | None:
    """The name of this GGUF tensor type ("IQ2_XS"); None for a removed or unknown type."""
    if row := by_gguf_id(gguf_id):
        return row.name
    return RARE[gguf_id][0] if gguf_id in RARE else None


@cache
def _log_reason(gguf_id: int) -> None:
    _log.warning("%s tensors are decoded to F16 on loading, since there is no kernel for them", type_name(gguf_id))


def _require_known(gguf_id: int, label: str) -> tuple[str, int, int]:
    if gguf_id in REMOVED:
        raise QuantFormatError(f"{label}: type {gguf_id} ({REMOVED[gguf_id]}) was removed from GGUF")
    if gguf_id not in RARE:
        raise QuantFormatError(f"{label}: unknown tensor type {gguf_id}")
    return RARE[gguf_id]


def load(gguf_id: int, shape: tuple[int, ...], data: U8, name: str = "") -> QTensor:
    """A tensor of a type that the table has no row for, decoded to F16 (to F32 where a value is beyond F16).

    shape  as in QTensor, the last axis contiguous
    data   uint8 [*shape[:-1], bytes of a row]

    The first tensor of each type is logged with the reason. Raises QuantFormatError for a removed or unknown type, and
    where shape and data do not fit the type.
    """
    label = f"tensor {name!r}" if name else "tensor"
    kind, block, block_bytes = _require_known(gguf_id, label)
    fits = bool(shape) and shape[-1] % block == 0 and data.dtype == np.uint8
    if not fits or data.shape != (*shape[:-1], shape[-1] // block * block_bytes):
        raise QuantFormatError(
            f"{label}: shape {shape} with packed data {data.dtype} {data.shape} is not whole {kind} blocks"
            f" (allowed: multiples of {block} values, {block_bytes} bytes each)"
        )
    _log_reason(gguf_id)
    blocks = data.reshape(-1, block_bytes)
    values = _decode(_OWN[gguf_id], blocks, np.dtype(np.float16))
    if values is None:
        _log.warning("%s has values beyond F16's range and is kept as F32", label)
        values = _decode(_OWN[gguf_id], blocks, np.dtype(np.float32))
        assert values is not None
    fmt = by_name("F16" if values.dtype == np.float16 else "F32")
    return QTensor(fmt, shape, values.reshape(shape).view(np.uint8), name)


def _decode(row: BlockFormat, blocks: U8, dtype: np.dtype[Any]) -> AnyArray | None:
    """Values [blocks, block] in `dtype`; None where a finite one does not fit."""
    out = np.empty((len(blocks), row.block), dtype=dtype)
    largest = np.finfo(dtype).max
    with np.errstate(all="ignore"):
        for part in chunks(len(blocks), row.block):
            values = dequantize(QTensor(row, (part.stop - part.start, row.block), blocks[part]))
            if np.any(np.isfinite(values) & (np.abs(values) > largest)):
                return None
            out[part] = values
    return out
