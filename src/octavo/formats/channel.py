"""Formats whose scale belongs to a whole row, an output channel: what products with activations of 8 bits read.

A block of these is a row of K values, so there is a row of the format table for each K, made when it is asked for.
Checkpoints in safetensors hold such weights; GGUF has no number for them.

    INT8       w = d * code, code from -128 to 127
    INT4       w = d * code, code from -8 to 7
    INT4_G128  w = d * round(sc * code), code from -8 to 7, sc a float16 for each 128: the two levels of QQQ (arXiv
               2406.09904, section 3.3), whose sum over K is one of integers
    FP8        w = d * code, code an e4m3 number
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from octavo.errors import QuantFormatError
from octavo.formats.scalars import E4M3_NUMBER
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Fields, Planes, f16, f32, s8, u8

GROUP = 128
FP8_TOP = np.float32(448)
LARGEST_K = 1 << 30


def channel_format(name: str, k: int) -> BlockFormat:
    """The format called `name` ("INT8", "INT4", "INT4_G128", "FP8") for rows of `k` values.

    Raises QuantFormatError for another name, and for rows that it can't hold: fewer than 2 values, or, of 4 bits, other
    than multiples of 128.
    """
    if name not in _FAMILIES:
        raise QuantFormatError(f"unknown format {name!r} of rows (allowed: {', '.join(_FAMILIES)})")
    multiple = GROUP if name.startswith("INT4") else 1
    if not 2 <= k <= LARGEST_K or k % multiple:
        allowed = f"multiples of {GROUP}" if multiple > 1 else f"2 to {LARGEST_K}"
        raise QuantFormatError(f"{name}: a row of {k} values (allowed: {allowed})")
    return _made(name, k)


@cache
def _made(name: str, k: int) -> BlockFormat:
    return _FAMILIES[name](name, k)


def two_levels(scales: F32, largest_code: AnyArray) -> tuple[F32, npt.NDArray[np.float16]]:
    """Plain scales of groups [..., K / 128] as scales of rows [..., 1] and relative ones of groups.

    largest_code  [...] the largest magnitude of a row's codes: its largest scale times that becomes 127 steps
    """
    steps = np.asarray(largest_code, np.float32) / np.float32(127)
    channel = (np.abs(scales).max(axis=-1, initial=0) * steps)[..., None]
    return channel, _over(scales, channel).astype(np.float16)


def group_scales(x: F32) -> F32:
    """Plain scales [..., K / 128] of values [..., K] that are rounded to codes from -7 to 7."""
    return _largest(x.reshape(*x.shape[:-1], -1, GROUP)) / np.float32(7)


def nibbles(q: U8) -> U8:
    """Codes 0 to 15 [..., K], less 8, as bytes [..., K / 2]: of each 64, low nibbles first and high nibbles after."""
    low, high = np.moveaxis((q ^ np.uint8(8)).reshape(*q.shape[:-1], -1, 2, GROUP // 2), -2, 0)
    packed: U8 = low | (high << np.uint8(4))
    return packed.reshape(*q.shape[:-1], -1)


def _int8(name: str, k: int) -> BlockFormat:
    return BlockFormat(name, block=k, bits=8, group=k, super=k, offset=128, activation="int8_token",
                       fields=(f32("d"), s8("qs", k)), unpack=_unpack_bytes, pack=_pack_bytes, encode=_encode_int8,
                       note="`qs` are signed; in planes they are unsigned with offset 128.")  # fmt: skip


def _int4(name: str, k: int) -> BlockFormat:
    return BlockFormat(name, block=k, bits=4, group=k, super=k, offset=8, activation="int8_token",
                       fields=(f32("d"), u8("qs", k // 2)), unpack=_unpack_nibbles, pack=_pack_nibbles,
                       encode=_encode_int4, note=_NIBBLES)  # fmt: skip


def _int4_groups(name: str, k: int) -> BlockFormat:
    return BlockFormat(name, block=k, bits=4, group=GROUP, super=k, offset=8, folds=True, activation="int8_token",
                       fields=(f32("d"), f16("sc", k // GROUP), u8("qs", k // 2)), unpack=_unpack_nibbles,
                       pack=_pack_nibbles, encode=_encode_int4_groups, note=_NIBBLES)  # fmt: skip


def _fp8(name: str, k: int) -> BlockFormat:
    return BlockFormat(name, block=k, bits=8, group=k, super=k, number=E4M3_NUMBER, activation="fp8_token",
                       fields=(f32("d"), u8("qs", k)), unpack=_unpack_numbers, pack=_pack_numbers, encode=_encode_fp8,
                       note="`qs` are e4m3 numbers.")  # fmt: skip


_NIBBLES = "Each 64 bytes of `qs` hold 128 codes less 8: low nibbles the first 64, high nibbles the rest."

_FAMILIES: dict[str, Callable[[str, int], BlockFormat]] = {
    "INT8": _int8, "INT4": _int4, "INT4_G128": _int4_groups, "FP8": _fp8,
}  # fmt: skip


def _rows(field: AnyArray) -> AnyArray:
    """[..., blocks, count] -> [..., blocks * count]."""
    return field.reshape(*field.shape[:-2], -1)


def _unpack_bytes(fields: Fields) -> Planes:
    return Planes(_rows(fields["qs"].view(np.uint8) ^ np.uint8(0x80)), d=_rows(fields["d"]))


def _pack_bytes(planes: Planes) -> Fields:
    d = _d(planes)
    return {"d": d[..., None], "qs": (planes.q ^ np.uint8(0x80)).view(np.int8).reshape(*d.shape, -1)}


def _unpack_numbers(fields: Fields) -> Planes:
    return Planes(_rows(fields["qs"]), d=_rows(fields["d"]))


def _pack_numbers(planes: Planes) -> Fields:
    d = _d(planes)
    return {"d": d[..., None], "qs": planes.q.reshape(*d.shape, -1)}


def _unpack_nibbles(fields: Fields) -> Planes:
    packed = fields["qs"]
    pairs = packed.reshape(*packed.shape[:-1], -1, 1, GROUP // 2)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=-2) ^ np.uint8(8)
    sc = _rows(fields["sc"]) if "sc" in fields else None
    return Planes(codes.reshape(*packed.shape[:-2], -1), d=_rows(fields["d"]), sc=sc)


def _pack_nibbles(planes: Planes) -> Fields:
    d = _d(planes)
    fields: Fields = {"d": d[..., None], "qs": nibbles(planes.q).reshape(*d.shape, -1)}
    return fields if planes.sc is None else {**fields, "sc": planes.sc.reshape(*d.shape, -1)}


def _d(planes: Planes) -> F32:
    assert planes.d is not None
    return planes.d


def _encode_int8(fmt: BlockFormat, x: F32) -> Planes:
    rows = x.reshape(*x.shape[:-1], -1, fmt.block)
    d = _largest(rows) / np.float32(127)
    return Planes(_codes(rows, d, 127, 128).reshape(x.shape), d=d)


def _encode_int4(fmt: BlockFormat, x: F32) -> Planes:
    rows = x.reshape(*x.shape[:-1], -1, fmt.block)
    d = _largest(rows) / np.float32(7)
    return Planes(_codes(rows, d, 7, 8).reshape(x.shape), d=d)


def _encode_int4_groups(fmt: BlockFormat, x: F32) -> Planes:
    groups = x.reshape(*x.shape[:-1], -1, fmt.block // GROUP, GROUP)
    scales = group_scales(groups)[..., 0]
    d, sc = two_levels(scales, np.full(scales.shape[:-1], 7))
    return Planes(_codes(groups, scales, 7, 8).reshape(x.shape), d=d[..., 0], sc=_rows(sc))


def _encode_fp8(fmt: BlockFormat, x: F32) -> Planes:
    rows = x.reshape(*x.shape[:-1], -1, fmt.block)
    d = _largest(rows) / FP8_TOP
    codes = E4M3_NUMBER.encode
    assert codes is not None
    return Planes(codes(np.clip(_over(rows, d[..., None]), -FP8_TOP, FP8_TOP)).reshape(x.shape), d=d)


def _largest(groups: F32) -> F32:
    largest: F32 = np.abs(groups).max(axis=-1)
    return largest


def _codes(groups: F32, scale: F32, top: int, offset: int) -> U8:
    return (np.clip(np.rint(_over(groups, scale[..., None])), -top, top) + offset).astype(np.uint8)


def _over(x: F32, scale: F32) -> F32:
    """x / scale, 0 where the scale is 0."""
    out = np.zeros(np.broadcast_shapes(x.shape, scale.shape), np.float32)
    with np.errstate(invalid="ignore"):  # scales of a damaged file
        return np.divide(x, scale, out=out, where=~(scale <= 0))
