"""Rows of groups: what is packed is what is read back, and values are those of the equation, rounded once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.formats.groups import random_planes, random_tensor, values_of

from octavo.errors import QuantFormatError
from octavo.formats import dequantize, group_format, unpack
from octavo.formats.group import BITS, GROUPS, SCALES, group_of

ALL = list(itertools.product(BITS, GROUPS, SCALES, ("offset", "zero", "minimum")))


def test_there_and_back_with_values_rounded_once() -> None:
    for bits, group, scale, below in ALL:
        fmt = group_format(bits, group, scale, below)
        planes, tensor = random_planes(fmt, 3, 2 * group), random_tensor(fmt, 3, 2 * group)
        back = unpack(tensor)
        for part in ("q", "d", "dmin", "m"):
            np.testing.assert_array_equal(getattr(back, part), getattr(planes, part), err_msg=f"{fmt.name} {part}")
        want, got = values_of(planes, fmt), dequantize(tensor)
        if below == "minimum" and scale == "F32":  # a product and a difference, each rounded
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(got, want.astype(np.float32), err_msg=fmt.name)


def test_bytes_of_a_block() -> None:
    assert group_format(4, 128).block_bytes == 64 + 2
    assert group_format(4, 128, "BF16", "zero").block_bytes == 64 + 3
    assert group_format(3, 64, "F32").block_bytes == 24 + 4
    assert group_format(8, 32, "F16", "minimum").block_bytes == 32 + 4
    assert group_format(4, 128, "F16", "zero").name == "GROUP4_128_Z_F16"


def test_where_a_code_lies() -> None:
    """By the words of the note: bits B j and on of byte i of field qB are code i + j * bytes."""
    fmt = group_format(6, 32)
    tensor, q = random_tensor(fmt, 1, 32), random_planes(fmt, 1, 32).q[0]
    four, two = tensor.data[0, 2:18], tensor.data[0, 18:26]
    for i in range(32):
        low = four[i % 16] >> (4 * (i // 16)) & 15
        assert q[i] == low | (two[i % 8] >> (2 * (i // 8)) & 3) << 4


@pytest.mark.parametrize(
    ("values", "group"), [(32, 32), (96, 32), (64, 64), (192, 64), (1024, 128), (48, 16), (24, None)]
)
def test_scales_of_more_values_are_stored_in_the_largest_group(values: int, group: int | None) -> None:
    assert group_of(values) == group
    assert group_of(values, least=32) == (None if group == 16 else group)


@pytest.mark.parametrize(
    ("wrong", "said"), [((7, 32), "bits 7"), ((4, 24), "group 24"), ((4, 32, "F64"), "scales F64")]
)
def test_rows_that_there_are_not(wrong: tuple[int, int], said: str) -> None:
    with pytest.raises(QuantFormatError, match=said):
        group_format(*wrong)
