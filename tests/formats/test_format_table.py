"""The table against the gguf package's sizes and against itself."""

import gguf
import pytest
from format_oracle import BLOCK_FORMATS

from octavo.errors import QuantFormatError
from octavo.formats import FORMATS, by_gguf_id, by_name

# name: values and bytes of a block, as the format's definition has them
SIZES = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "F64": (1, 8), "I8": (1, 1), "I16": (1, 2), "I32": (1, 4),
    "I64": (1, 8), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q8_1": (32, 36), "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176),
    "Q6_K": (256, 210), "Q8_K": (256, 292), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "MXFP4": (32, 17),
    "NVFP4": (64, 36), "TQ1_0": (256, 54), "TQ2_0": (256, 66), "IQ1_S": (256, 50), "IQ1_M": (256, 56),
    "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82), "IQ3_XXS": (256, 98), "IQ3_S": (256, 110),
}


def test_the_table_has_every_format_and_its_size():
    assert {f.name: (f.block, f.block_bytes) for f in FORMATS} == SIZES


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_sizes_are_the_sum_of_the_fields_and_those_of_gguf(fmt):
    kind = gguf.GGMLQuantizationType(fmt.gguf)
    assert kind.name == fmt.name
    assert fmt.block_bytes == sum(f.dtype.itemsize * f.count for f in fmt.fields) == fmt.dtype.itemsize
    if fmt.name == "Q8_1":  # gguf still has the size of the old block, with two f32 before the codes
        assert gguf.GGML_QUANT_SIZES[kind] == (32, 4 + 4 + 32)
    else:
        assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block, fmt.block_bytes)


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.name)
def test_groups_nest(fmt):
    assert fmt.block % fmt.group == 0
    assert fmt.super % fmt.group == 0
    assert (fmt.scale_bits > 0) == (fmt.super > fmt.group)
    assert fmt.table is None or len(fmt.table) == 1 << fmt.bits
    assert not (fmt.offset and fmt.has_min)


def test_names_and_numbers_are_unique_and_found():
    assert len({f.name for f in FORMATS}) == len({f.gguf for f in FORMATS}) == len(FORMATS)
    for fmt in FORMATS:
        assert by_name(fmt.name) is by_name(fmt.name.lower()) is by_gguf_id(fmt.gguf) is fmt


def test_bits_per_weight():
    assert by_name("Q4_K").bits_per_weight == 4.5
    assert by_name("Q3_K").bits_per_weight == 3.4375
    assert by_name("MXFP4").bits_per_weight == 4.25


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    with pytest.raises(QuantFormatError, match=r"'Q9_Z'.*Q4_K"):
        by_name("Q9_Z")
    assert by_gguf_id(41) is None
