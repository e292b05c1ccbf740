"""Rows of the format table for the formats with a codebook (see `codebook`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.formats import codebook as codebooks
from octavo.formats import codebook_fields as of
from octavo.formats.codebook import Codebook
from octavo.formats.codebook_encoder import nearest_entries
from octavo.formats.spec import BlockFormat, Field, Fields, Indexed, Planes, f16, u8, u16, u32


def _signed(*sizes: int) -> tuple[int, ...]:
    """Values without a sign and with one."""
    return (*sizes, *(-s for s in sizes))


IQ1_VALUES = (-7, 1, 9, 9, -9, -1, 7, 7)  # eight times -1, 0, 1, plus 1 or, with a sign, minus 1
IQ2_VALUES = _signed(8, 25, 43, 43)
IQ3_XXS_VALUES = _signed(4, 12, 20, 28, 36, 44, 52, 62)
IQ3_S_VALUES = _signed(1, 3, 5, 7, 9, 11, 13, 15)


@dataclass(frozen=True)
class _Unpack:
    """Packed fields to planes by way of codebook indices."""

    codebook: Codebook
    indexed: Callable[[Fields], Indexed]

    def __call__(self, f: Fields) -> Planes:
        stored = self.indexed(f)
        return Planes(self.codebook.codes(stored.index, stored.signs), d=stored.d, sc=stored.sc)


@dataclass(frozen=True)
class _Pack:
    """The inverse of `_Unpack`."""

    codebook: Codebook
    fields: Callable[[Indexed], Fields]

    def __call__(self, p: Planes) -> Fields:
        assert p.d is not None
        assert p.sc is not None
        return self.fields(Indexed(*self.codebook.indices(p.q), p.sc, p.d))


def _row(
    name: str,
    gguf: int,
    codebook: Codebook,
    indexed: Callable[[Fields], Indexed],
    fields_of: Callable[[Indexed], Fields],
    *,
    table: tuple[int, ...],
    step: float,
    group: int,
    fields: tuple[Field, ...],
    note: str,
    scale_bits: int = 4,
) -> BlockFormat:
    return BlockFormat(name, gguf=gguf, block=256, bits=codebook.bits + 1, group=group, super=256,
                       scale_bits=scale_bits, odd_scales=True, table=table, step=step, codebook=codebook,
                       indexed=indexed, fields=fields, note=note,
                       unpack=_Unpack(codebook, indexed), pack=_Pack(codebook, fields_of), encode=nearest_entries)


CODEBOOK_FORMATS: tuple[BlockFormat, ...] = (
    _row("IQ2_XXS", 16, codebooks.IQ2_XXS, of.iq2_xxs, of.pack_iq2_xxs,
         table=IQ2_VALUES, step=0.125, group=32, fields=(f16("d"), u16("qs", 32)),
         note="Each 8 bytes of `qs` are 32 values: the indices of 4 entries of 8 values, a byte each, and a 32-bit word"
              " of 4 times 7 signs and a scale above them."),
    _row("IQ2_XS", 17, codebooks.IQ2_XS, of.iq2_xs, of.pack_iq2_xs,
         table=IQ2_VALUES, step=0.125, group=16, fields=(f16("d"), u16("qs", 32), u8("scales", 8)),
         note="Each word of `qs` is 8 values: the index of an entry in the low 9 bits, 7 signs above. Nibble g of"
              " `scales` is the scale of group g."),
    _row("IQ3_XXS", 18, codebooks.IQ3_XXS, of.iq3_xxs, of.pack_iq3_xxs,
         table=IQ3_XXS_VALUES, step=0.25, group=32, fields=(f16("d"), u8("qs", 64), u32("signs", 8)),
         note="Each byte of `qs` is the index of an entry of 4 values; each word of `signs` has 4 times 7 signs of 32"
              " values, and their scale above."),
    _row("IQ1_S", 19, codebooks.IQ1, of.iq1_s, of.pack_iq1_s,
         table=IQ1_VALUES, step=0.125, group=32, scale_bits=3, fields=(f16("d"), u8("qs", 32), u16("qh", 8)),
         note="`qs` are the low 8 bits of indices of entries of 8 values. A word of `qh` is 32 values: 4 times the"
              " upper 3 bits, a scale of 3, and the shift of all in the highest."),
    _row("IQ3_S", 21, codebooks.IQ3_S, of.iq3_s, of.pack_iq3_s,
         table=IQ3_S_VALUES, step=1, group=32,
         fields=(f16("d"), u8("qs", 64), u8("qh", 8), u8("signs", 32), u8("scales", 4)),
         note="`qs` are the low 8 bits of indices of entries of 4 values, bit i of `qh` the ninth of index i. Bit k of"
              " `signs` is the sign of value k; nibble g of `scales` is the scale of group g."),
    _row("IQ2_S", 22, codebooks.IQ2_S, of.iq2_s, of.pack_iq2_s,
         table=IQ2_VALUES, step=0.125, group=16,
         fields=(f16("d"), u8("qs", 32), u8("signs", 32), u8("qh", 8), u8("scales", 8)),
         note="`qs` are the low 8 bits of indices of entries of 8 values; the upper two are bits 2i and 2i+1 of `qh`."
              " Bit k of `signs` is the sign of value k; nibble g of `scales` is the scale of group g."),
    _row("IQ1_M", 29, codebooks.IQ1, of.iq1_m, of.pack_iq1_m,
         table=IQ1_VALUES, step=0.125, group=16, scale_bits=3,
         fields=(u8("qs", 32), u8("qh", 16), u16("scales", 4)),
         note="`qs` are the low 8 bits of indices of entries of 8 values; nibble i of `qh` is the upper 3 bits of index"
              " i and the shift of its values. The words of `scales` hold 4 scales of 3 bits each and, on top, 4 bits"
              " of the f16 d, the lowest first."),
)
