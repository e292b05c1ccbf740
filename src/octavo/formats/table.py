"""The format table: one row a stored format. Sizes are the sums of the fields and are asserted."""

from __future__ import annotations

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.spec import AnyArray, BlockFormat, Field, Planes, f16, f32, s8, u8, u16


def _flat(a: AnyArray) -> AnyArray:
    """[..., blocks, n] -> [..., blocks * n]."""
    return a.reshape(*a.shape[:-2], -1)


def _unpack_float(fields: dict[str, AnyArray]) -> Planes:
    return Planes(_flat(fields["x"]))


def _unpack_q4_0(fields: dict[str, AnyArray]) -> Planes:
    qs = fields["qs"]
    q = np.concatenate([qs & 15, qs >> 4], axis=-1)
    return Planes(_flat(q), d=_flat(fields["d"]).astype(np.float32))


def _unpack_q8_0(fields: dict[str, AnyArray]) -> Planes:
    q = fields["qs"].view(np.uint8) ^ 0x80
    return Planes(_flat(q), d=_flat(fields["d"]).astype(np.float32))


def _float_format(name: str, gguf: int, field: Field, bits: int) -> BlockFormat:
    return BlockFormat(name, gguf=gguf, block=1, bits=bits, group=1, super=1, is_float=True,
                       activation="f32", fields=(field,), unpack=_unpack_float)  # fmt: skip


FORMATS: tuple[BlockFormat, ...] = (
    _float_format("F32", 0, f32("x"), 32),
    _float_format("F16", 1, f16("x"), 16),
    _float_format("BF16", 30, u16("x"), 16),
    BlockFormat("Q4_0", gguf=2, block=32, bits=4, group=32, super=32, offset=8,
                fields=(f16("d"), u8("qs", 16)), unpack=_unpack_q4_0),
    BlockFormat("Q8_0", gguf=8, block=32, bits=8, group=32, super=32, offset=128,
                fields=(f16("d"), s8("qs", 32)), unpack=_unpack_q8_0),
)  # fmt: skip

_BY_NAME = {f.name: f for f in FORMATS}
_BY_GGUF = {f.gguf: f for f in FORMATS if f.gguf is not None}


def by_name(name: str) -> BlockFormat:
    """The format called `name` (as in "Q4_K"). Raises QuantFormatError for an unknown one."""
    try:
        return _BY_NAME[name.upper()]
    except KeyError:
        raise QuantFormatError(f"unknown format {name!r} (allowed: {', '.join(_BY_NAME)})") from None


def by_gguf_id(number: int) -> BlockFormat | None:
    """The format with this GGUF tensor type id, or None where the table has none."""
    return _BY_GGUF.get(number)
