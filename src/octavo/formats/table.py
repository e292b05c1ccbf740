"""The format table: one row a stored format. Sizes are the sums of the fields, and docs/formats.md is made from it.

Numbers, block sizes and packings are those of the GGUF specification and of ggml's block definitions; e2m1, e4m3 and
e8m0 are the OCP Microscaling (MX) v1.0 number formats.
"""

from __future__ import annotations

from octavo.errors import QuantFormatError
from octavo.formats import encoders, packers, scalars, unpackers
from octavo.formats.codebook_rows import CODEBOOK_FORMATS
from octavo.formats.spec import (
    BlockFormat,
    Field,
    Number,
    bf16,
    e8m0,
    f16,
    f32,
    f64,
    s8,
    s16,
    s32,
    s64,
    u8,
    u16,
    ue4m3,
)

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled, so that they are integers


def _plain(name: str, gguf: int, field: Field, number: Number, note: str) -> BlockFormat:
    return BlockFormat(name, gguf=gguf, block=1, bits=8 * field.nbytes, group=1, super=1, number=number,
                       activation="f32", fields=(field,), unpack=unpackers.plain, pack=packers.plain,
                       encode=encoders.plain if number.encode else None, note=note)


FORMATS: tuple[BlockFormat, ...] = (
    _plain("F32", 0, f32("x"), scalars.F32_NUMBER, "IEEE 754 single precision."),
    _plain("F16", 1, f16("x"), scalars.F16_NUMBER, "IEEE 754 half precision."),
    _plain("BF16", 30, bf16("x"), scalars.BF16_NUMBER, "The upper 16 bits of a float32."),
    _plain("F64", 28, f64("x"), scalars.F64_NUMBER, "IEEE 754 double precision, rounded to float32 when decoded."),
    _plain("I8", 24, s8("x"), scalars.INTEGER, "Plain integers, for index tensors."),
    _plain("I16", 25, s16("x"), scalars.INTEGER, "Plain integers, for index tensors."),
    _plain("I32", 26, s32("x"), scalars.INTEGER, "Plain integers, rounded to float32 when decoded."),
    _plain("I64", 27, s64("x"), scalars.INTEGER, "Plain integers, rounded to float32 when decoded."),

    BlockFormat("Q4_0", gguf=2, block=32, bits=4, group=32, super=32, offset=8,
                fields=(f16("d"), u8("qs", 16)), unpack=unpackers.q4_0,
                pack=packers.q4_0, encode=encoders.symmetric,
                note="Low nibbles of `qs` are codes 0-15, high nibbles codes 16-31."),
    BlockFormat("Q4_1", gguf=3, block=32, bits=4, group=32, super=32, has_min=True,
                fields=(f16("d"), f16("m"), u8("qs", 16)), unpack=unpackers.q4_1,
                pack=packers.q4_1, encode=encoders.affine,
                note="Low nibbles of `qs` are codes 0-15, high nibbles codes 16-31. `m` is the value of code 0 and is"
                     " added: dmin = -m."),
    BlockFormat("Q5_0", gguf=6, block=32, bits=5, group=32, super=32, offset=16,
                fields=(f16("d"), u8("qh", 4), u8("qs", 16)), unpack=unpackers.q5_0,
                pack=packers.q5_0, encode=encoders.symmetric,
                note="`qs` as in Q4_0; bit k of `qh`, read as one 32-bit word, is the fifth bit of code k."),
    BlockFormat("Q5_1", gguf=7, block=32, bits=5, group=32, super=32, has_min=True,
                fields=(f16("d"), f16("m"), u8("qh", 4), u8("qs", 16)), unpack=unpackers.q5_1,
                pack=packers.q5_1, encode=encoders.affine,
                note="Codes as in Q5_0. `m` is the value of code 0 and is added: dmin = -m."),
    BlockFormat("Q8_0", gguf=8, block=32, bits=8, group=32, super=32, offset=128,
                fields=(f16("d"), s8("qs", 32)), unpack=unpackers.signed_bytes,
                pack=packers.q8_0, encode=encoders.signed_bytes,
                note="`qs` are signed; in planes they are unsigned with offset 128."),
    BlockFormat("Q8_1", gguf=9, block=32, bits=8, group=32, super=32, offset=128,
                fields=(f16("d"), f16("s"), s8("qs", 32)), unpack=unpackers.signed_bytes,
                pack=packers.q8_1, encode=encoders.signed_bytes,
                note="For activations. `qs` as in Q8_0; `s` is d times the sum of `qs`, which accounts for the offset"
                     " or minimum of the other factor of a product. It does not enter the value."),

    BlockFormat("Q2_K", gguf=10, block=256, bits=2, group=16, super=256, scale_bits=4, has_min=True,
                fields=(u8("scales", 16), u8("qs", 64), f16("d"), f16("dmin")), unpack=unpackers.q2_k,
                pack=packers.q2_k, encode=encoders.two_level_min,
                note="Byte g of `scales` is the scale (low nibble) and the minimum (high nibble) of group g. Each 32"
                     " bytes of `qs` hold 128 codes: bits 0-1 of the bytes are the first 32, bits 2-3 the next 32, and"
                     " so on."),
    BlockFormat("Q3_K", gguf=11, block=256, bits=3, group=16, super=256, scale_bits=6, offset=4,
                fields=(u8("hmask", 32), u8("qs", 64), u8("scales", 12), f16("d")), unpack=unpackers.q3_k,
                pack=packers.q3_k, encode=encoders.two_level,
                note="Low two bits in `qs` as in Q2_K; bit j of the 32 bytes of `hmask` is the third bit of codes 32j"
                     " to 32j+31. Scales are six bits less 32: their low nibbles are the low nibbles of `scales` 0-7"
                     " (groups 0-7), then the high ones (groups 8-15); bits 2j and 2j+1 of bytes 8-11 are the upper"
                     " two of groups 4j to 4j+3."),
    BlockFormat("Q4_K", gguf=12, block=256, bits=4, group=32, super=256, scale_bits=6, has_min=True,
                fields=(f16("d"), f16("dmin"), u8("scales", 12), u8("qs", 128)), unpack=unpackers.q4_k,
                pack=packers.q4_k, encode=encoders.two_level_min,
                note="Each 32 bytes of `qs` hold two groups: low nibbles, then high nibbles. Scales and minima are six"
                     " bits: those of groups 0-3 are the low six bits of `scales` 0-3 and 4-7; those of groups 4-7 have"
                     " their low four bits in bytes 8-11 (scale low, minimum high) and their upper two at the top of"
                     " bytes 0-3 and 4-7."),
    BlockFormat("Q5_K", gguf=13, block=256, bits=5, group=32, super=256, scale_bits=6, has_min=True,
                fields=(f16("d"), f16("dmin"), u8("scales", 12), u8("qh", 32), u8("qs", 128)), unpack=unpackers.q5_k,
                pack=packers.q5_k, encode=encoders.two_level_min,
                note="Scales, minima and the low four bits as in Q4_K; bit g of the 32 bytes of `qh` is the fifth bit"
                     " of the codes of group g."),
    BlockFormat("Q6_K", gguf=14, block=256, bits=6, group=16, super=256, scale_bits=8, offset=32,
                fields=(u8("ql", 128), u8("qh", 64), s8("scales", 16), f16("d")), unpack=unpackers.q6_k,
                pack=packers.q6_k, encode=encoders.two_level,
                note="Each half of 128 codes has 64 bytes of `ql`, low nibbles then high nibbles, and 32 bytes of"
                     " `qh`: bits 0-1 are the upper two bits of its first 32 codes, bits 2-3 of the next 32, and so"
                     " on."),
    BlockFormat("Q8_K", gguf=15, block=256, bits=8, group=256, super=256, offset=128,
                fields=(f32("d"), s8("qs", 256), s16("bsums", 16)), unpack=unpackers.signed_bytes,
                pack=packers.q8_k, encode=encoders.signed_bytes_k,
                note="For activations. `qs` are signed; in planes they are unsigned with offset 128. `bsums` are the"
                     " sums of `qs` by sixteen and do not enter the value."),

    BlockFormat("IQ4_NL", gguf=20, block=32, bits=4, group=32, super=32, table=IQ4_VALUES,
                fields=(f16("d"), u8("qs", 16)), unpack=unpackers.q4_0,
                pack=packers.q4_0, encode=encoders.table,
                note="Packed as Q4_0, with a table of values that lie closer together near zero."),
    BlockFormat("IQ4_XS", gguf=23, block=256, bits=4, group=32, super=256, scale_bits=6, table=IQ4_VALUES,
                fields=(f16("d"), u16("scales_h"), u8("scales_l", 4), u8("qs", 128)), unpack=unpackers.iq4_xs,
                pack=packers.iq4_xs, encode=encoders.two_level,
                note="Each group has 16 bytes of `qs`, low nibbles then high nibbles. Scales are six bits less 32:"
                     " nibble g of `scales_l`, and bits 2g and 2g+1 of `scales_h` above it."),
    BlockFormat("MXFP4", gguf=39, block=32, bits=4, group=32, super=32, table=E2M1_VALUES,
                fields=(e8m0("d"), u8("qs", 16)), unpack=unpackers.mxfp4,
                pack=packers.mxfp4, encode=encoders.mxfp4,
                note="Packed as Q4_0. Codes are e2m1 floats; the table has them doubled, so the scale is halved:"
                     " 2^(d - 128)."),
    BlockFormat("NVFP4", gguf=40, block=64, bits=4, group=16, super=16, table=E2M1_VALUES,
                fields=(ue4m3("d", 4), u8("qs", 32)), unpack=unpackers.nvfp4,
                pack=packers.nvfp4, encode=encoders.nvfp4,
                note="Each group has 8 bytes of `qs`, low nibbles then high nibbles, and a scale of its own. Codes are"
                     " e2m1 floats; the table has them doubled, so the scale is halved; scale byte 0x7F is zero."
                     " The smallest scale is 2^-9, so a tensor of small weights needs a scale of its own beside it."),

    BlockFormat("TQ1_0", gguf=34, block=256, bits=2, group=256, super=256, offset=1, base3=True,
                fields=(u8("qs", 48), u8("qh", 4), f16("d")), unpack=unpackers.tq1_0,
                pack=packers.tq1_0, encode=encoders.ternary,
                note="Codes 0, 1 and 2 are trits, five in a byte: byte = ceil(256 / 243 * number), and"
                     " its trits come out, the highest first, as the high byte of 3 times what is left. Trit n of"
                     " the first 32 bytes of `qs` are codes 32n to 32n+31; trit n of the next 16 codes 160+16n and on;"
                     " `qh` has four trits a byte, code 240+4n and on."),
    BlockFormat("TQ2_0", gguf=35, block=256, bits=2, group=256, super=256, offset=1,
                fields=(u8("qs", 64), f16("d")), unpack=unpackers.tq2_0,
                pack=packers.tq2_0, encode=encoders.ternary,
                note="Codes are packed as in Q2_K; those that are written are 0, 1 and 2."),
    *CODEBOOK_FORMATS,
)


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
