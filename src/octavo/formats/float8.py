"""Rows of e4m3 numbers with a float32 scale for each 128 or 32 of them: checkpoints that block-scale their weights.

    w = d * code, code an e4m3 number

Products take activations as floats. GGUF has no number for these rows; `formats.channel` has those of a scale a row.
"""

from __future__ import annotations

from functools import cache

from octavo.errors import QuantFormatError
from octavo.formats.rows import FP8_TOP, in_range, symmetric_scale
from octavo.formats.scalars import E4M3_NUMBER, f32_to_e4m3
from octavo.formats.spec import F32, BlockFormat, Fields, Planes, f32, u8
from octavo.formats.unpackers import flat

GROUPS = (128, 32)


@cache
def float8_format(group: int) -> BlockFormat:
    """The format with a scale for each `group` values. Raises QuantFormatError for another group."""
    if group not in GROUPS:
        raise QuantFormatError(f"rows of e4m3 numbers: group {group} (allowed: {', '.join(map(str, GROUPS))})")
    return BlockFormat(
        f"FP8_{group}", block=group, bits=8, group=group, super=group, number=E4M3_NUMBER, activation="f32",
        fields=(f32("d"), u8("qs", group)), unpack=_unpack, pack=_pack, encode=_encode, note="`qs` are e4m3 numbers.",
    )


def _unpack(fields: Fields) -> Planes:
    return Planes(flat(fields["qs"]), d=flat(fields["d"]))


def _encode(fmt: BlockFormat, values: F32) -> Planes:
    groups, top = values.reshape(*values.shape[:-1], -1, fmt.group), FP8_TOP["e4m3"]
    scale = symmetric_scale(groups, top)
    return Planes(f32_to_e4m3(in_range(groups, scale, top)).reshape(values.shape), d=scale)


def _pack(planes: Planes) -> Fields:
    assert planes.d is not None
    return {"d": planes.d[..., None], "qs": planes.q.reshape(*planes.d.shape, -1)}
