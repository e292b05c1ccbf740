"""Rows with one level of scales, as published checkpoints have them: a floating scale for each 16 to 128 values.

    offset   w = d * (q - 2^(bits - 1))      symmetric
    zero     w = d * (q - z)                 a zero point z, 0 to 255, for each group
    minimum  w = d * q + m                   a floating number for each group, stored as the scale is

Codes have 2, 3, 4, 5, 6 or 8 bits, scales are float16, bfloat16 or float32. Products d * q and d * z are exact in
float32 for scales of 16 bits, so decoding gives what the checkpoint's own library computes in float32. A scale that
belongs to more values, up to a whole row, is stored once for each 128: 16 bits beside 512 of codes. GGUF has no number
for these rows.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.encoders import affine, symmetric, zero_point
from octavo.formats.float8 import float8_format
from octavo.formats.scalars import bf16_to_f32, f32_to_bf16
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Fields, Pack, Planes, bf16, f16, f32, u8
from octavo.formats.table import by_name
from octavo.formats.unpackers import flat, split_bits

Below = Literal["offset", "zero", "minimum"]
SCALES = {"F16": f16, "BF16": bf16, "F32": f32}
"""How scales may be stored, by their types in safetensors."""
GROUPS = (128, 64, 32, 16)
BITS = (2, 3, 4, 5, 6, 8)
_ENDS: dict[Below, str] = {"offset": "", "zero": "_Z", "minimum": "_M"}


def group_of(values: int, least: int = GROUPS[-1]) -> int | None:
    """The group, of `least` values or more, that rows are stored in whose scales belong to `values` values each.

    None where none divides those.
    """
    return next((group for group in GROUPS if group >= least and values % group == 0), None)


@cache
def group_format(bits: int, group: int, scale: str = "F16", below: Below = "offset") -> BlockFormat:
    """The format of codes of `bits` in groups of `group`, scales stored as `scale` (see `SCALES`).

    Raises QuantFormatError for bits, groups and scales that there are no rows of.
    """
    for name, value, allowed in (("bits", bits, BITS), ("group", group, GROUPS), ("scales", scale, tuple(SCALES))):
        if value not in allowed:
            raise QuantFormatError(f"rows of groups: {name} {value} (allowed: {', '.join(map(str, allowed))})")
    beside = {"offset": (), "zero": (u8("z"),), "minimum": (SCALES[scale]("m"),)}[below]
    codes = tuple(u8(f"q{width}", group * width // 8) for width in widths(bits))
    return BlockFormat(
        f"GROUP{bits}_{group}{_ENDS[below]}_{scale}", block=group, bits=bits, group=group, super=group,
        fields=(SCALES[scale]("d"), *beside, *codes), unpack=_unpack, pack=_packer(bits, group, scale),
        encode={"offset": symmetric, "zero": zero_point, "minimum": affine}[below],
        has_min=below == "minimum", has_zero=below == "zero", offset=1 << (bits - 1) if below == "offset" else 0,
        note="Field qB holds B bits of each code, the lower ones in the wider field: bits B j to B j + B - 1 of byte i"
             " are those of code i + j * (bytes of the field).",
    )


def row_named(name: str) -> BlockFormat:
    """A row of the table, or one of groups by its own name, as "GROUP4_128_Z_F16" or "FP8_128". Raises
    QuantFormatError."""
    if float8 := re.fullmatch("FP8_([0-9]+)", name.upper()):
        return float8_format(int(float8[1]))
    found = re.fullmatch("GROUP([0-9])_([0-9]+)(|_Z|_M)_(F16|BF16|F32)", name.upper())
    if found is None:
        return by_name(name)
    below = next(kind for kind, end in _ENDS.items() if end == found[3])
    return group_format(int(found[1]), int(found[2]), found[4], below)


def with_wide_scales(fmt: BlockFormat) -> BlockFormat | None:
    """The same rows with scales of float32; None for rows whose scales are not floats in a field of their own."""
    if fmt.per_row or (fmt.fields and fmt.fields[0].dtype == np.dtype("<f4") and fmt.super == fmt.group):
        return fmt
    name, _, scale = fmt.name.rpartition("_")
    return row_named(f"{name}_F32") if fmt.name.startswith("GROUP") and scale in SCALES else None


def widths(bits: int) -> tuple[int, ...]:
    """Bits of the fields of codes, the widest first: 6 -> (4, 2)."""
    return (8,) if bits == 8 else tuple(width for width in (4, 2, 1) if bits & width)


def _unpack(fields: Fields) -> Planes:
    q, taken = None, 0
    for width in (8, 4, 2, 1):
        if f"q{width}" in fields:
            part = _codes(fields[f"q{width}"], width)
            q = part if q is None else q | part << np.uint8(taken)
            taken += width
    assert q is not None
    minimum = -_floats(fields["m"]) if "m" in fields else None
    return Planes(q, d=_floats(fields["d"]), dmin=minimum, m=flat(fields["z"]) if "z" in fields else None)


def _codes(field: U8, width: int) -> U8:
    """Codes of `width` bits, uint8 [..., blocks * G], of a field [..., blocks, bytes]."""
    return flat(field if width == 8 else split_bits(field, run=field.shape[-1] or 1, bits=width))


def _floats(field: AnyArray) -> F32:
    with np.errstate(invalid="ignore"):  # a signalling NaN in a damaged file
        return flat(bf16_to_f32(field) if field.dtype == np.uint16 else field.astype(np.float32))


def _packer(bits: int, group: int, scale: str) -> Pack:
    def stored(values: F32) -> AnyArray:
        if scale == "BF16":
            return f32_to_bf16(values)[..., None]
        with np.errstate(over="ignore"):
            return values.astype(SCALES[scale]("").dtype)[..., None]

    def pack(planes: Planes) -> Fields:
        assert planes.d is not None
        fields: Fields = {"d": stored(planes.d)}
        if planes.dmin is not None:
            fields["m"] = stored(-planes.dmin)
        if planes.m is not None:
            fields["z"] = planes.m[..., None]
        blocks, taken = planes.q.reshape(*planes.d.shape, group), 0
        for width in widths(bits):
            fields[f"q{width}"] = _joined(blocks >> np.uint8(taken), width)
            taken += width
        return fields

    return pack


def _joined(codes: U8, width: int) -> U8:
    """The lowest `width` bits of codes [..., G] as a field [..., G * width / 8]."""
    runs = (codes & np.uint8((1 << width) - 1)).reshape(*codes.shape[:-1], 8 // width, -1)
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    joined: U8 = np.bitwise_or.reduce(runs << shifts, axis=-2)
    return joined
