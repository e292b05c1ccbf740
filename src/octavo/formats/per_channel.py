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

from functools import cache, partial

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.rows import (
    FP8_TOP,
    GROUP,
    INT4_TOP,
    INT8_TOP,
    SCHEMES,
    in_range,
    pack_int4,
    symmetric,
    symmetric_scale,
    two_levels,
    unpack_int4,
)
from octavo.formats.scalars import E4M3_NUMBER, f32_to_e4m3
from octavo.formats.spec import F32, AnyArray, BlockFormat, Fields, Planes, f16, f32, s8, u8

LARGEST_K = 1 << 30
_SCHEMES = {scheme.format: scheme for scheme in SCHEMES.values()}
_NIBBLES = "Each 64 bytes of `qs` hold 128 codes less 8: low nibbles the first 64, high nibbles the rest."


def channel_format(name: str, k: int) -> BlockFormat:
    """The format called `name` ("INT8", "INT4", "INT4_G128", "FP8") for rows of `k` values.

    Raises QuantFormatError for another name, and for rows that it can't hold: fewer than 2 values, or, of 4 bits, other
    than multiples of 128.
    """
    if name not in _SCHEMES:
        raise QuantFormatError(f"unknown format {name!r} of rows (allowed: {', '.join(_SCHEMES)})")
    multiple = _SCHEMES[name].multiple
    if not 2 <= k <= LARGEST_K or k % multiple:
        allowed = f"multiples of {multiple}" if multiple > 1 else f"2 to {LARGEST_K}"
        raise QuantFormatError(f"{name}: a row of {k} values (allowed: {allowed})")
    return _make_format(name, k)


@cache
def _make_format(name: str, k: int) -> BlockFormat:
    scheme, d = _SCHEMES[name], f32("d")
    row = partial(BlockFormat, name, block=k, bits=scheme.bits, group=scheme.group or k, super=k,
                  activation=scheme.activation)
    if scheme.kind == "float":
        return row(number=E4M3_NUMBER, fields=(d, u8("qs", k)), unpack=_unpack_numbers, pack=_pack_numbers,
                   encode=_encode_fp8, note="`qs` are e4m3 numbers.")
    if scheme.bits == 8:
        return row(offset=128, fields=(d, s8("qs", k)), unpack=_unpack_bytes, pack=_pack_bytes, encode=_encode_int8,
                   note="`qs` are signed; in planes they are unsigned with offset 128.")
    row = partial(row, offset=8, unpack=_unpack_nibbles, pack=_pack_nibbles, note=_NIBBLES)
    if scheme.group is None:
        return row(fields=(d, u8("qs", k // 2)), encode=_encode_int4)
    return row(folds=True, fields=(d, f16("sc", k // scheme.group), u8("qs", k // 2)), encode=_encode_int4_groups)


def group_scales(x: F32) -> F32:
    """Plain scales [..., K / 128] of values [..., K] that are rounded to codes from -7 to 7."""
    return symmetric_scale(x.reshape(*x.shape[:-1], -1, GROUP), INT4_TOP)


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
    sc = _rows(fields["sc"]) if "sc" in fields else None
    codes = unpack_int4(fields["qs"]) + np.int8(8)
    return Planes(_rows(codes.view(np.uint8)), d=_rows(fields["d"]), sc=sc)


def _pack_nibbles(planes: Planes) -> Fields:
    d = _d(planes)
    fields: Fields = {"d": d[..., None], "qs": pack_int4(planes.q ^ np.uint8(8)).reshape(*d.shape, -1)}
    return fields if planes.sc is None else {**fields, "sc": planes.sc.reshape(*d.shape, -1)}


def _d(planes: Planes) -> F32:
    assert planes.d is not None
    return planes.d


def _blocks(fmt: BlockFormat, x: F32) -> F32:
    return x.reshape(*x.shape[:-1], -1, fmt.block)


def _encode_int8(fmt: BlockFormat, x: F32) -> Planes:
    codes, d = symmetric(_blocks(fmt, x), INT8_TOP)
    return Planes(codes.view(np.uint8).reshape(x.shape) ^ np.uint8(0x80), d=d)


def _encode_int4(fmt: BlockFormat, x: F32) -> Planes:
    codes, d = symmetric(_blocks(fmt, x), INT4_TOP)
    return Planes((codes + np.int8(8)).view(np.uint8).reshape(x.shape), d=d)


def _encode_int4_groups(fmt: BlockFormat, x: F32) -> Planes:
    codes, scales = symmetric(x.reshape(*x.shape[:-1], -1, fmt.block // GROUP, GROUP), INT4_TOP)
    d, sc = two_levels(scales, INT4_TOP)
    return Planes((codes + np.int8(8)).view(np.uint8).reshape(x.shape), d=d[..., 0], sc=_rows(sc))


def _encode_fp8(fmt: BlockFormat, x: F32) -> Planes:
    rows, top = _blocks(fmt, x), FP8_TOP["e4m3"]
    d = symmetric_scale(rows, top)
    return Planes(f32_to_e4m3(in_range(rows, d, top)).reshape(x.shape), d=d)
