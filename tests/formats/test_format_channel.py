"""Formats whose scale is a row's: against the definition of products of 8 bits, and their bytes back and forth."""

import numpy as np
import pytest

from octavo.errors import QuantFormatError
from octavo.formats import QTensor, channel_format, dequantize, pack, quantize_reference, unpack
from octavo.ops import definition
from octavo.ops.w4a8 import quantize_w4a8

NAMES = ("INT8", "INT4", "INT4_G128", "FP8")
X = (np.random.default_rng(0).normal(size=(5, 256)) * [[1], [100], [1e-3], [0], [1]]).astype(np.float32)


def by_definition(name):
    if name.startswith("INT4"):
        return quantize_w4a8(X, 128 if "G128" in name else None).dequantize()
    quantize = definition.quantize_int8 if name == "INT8" else lambda x, g: definition.quantize_fp8(x, "e4m3", g)
    codes, scale = quantize(X, "channel")
    return codes.astype(np.float32) * scale


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_definition(name):
    assert np.array_equal(dequantize(quantize_reference(X, channel_format(name, 256))), by_definition(name))


@pytest.mark.parametrize("name", NAMES)
def test_bytes_to_planes_and_back(name):
    tensor = quantize_reference(X, channel_format(name, 256))
    planes = unpack(tensor)
    assert planes.q.shape == X.shape
    assert planes.d.shape == (5, 1)
    assert np.array_equal(pack(planes, tensor.format), tensor.data)


@pytest.mark.parametrize(("name", "bits"), [("INT8", 8.125), ("INT4", 4.125), ("INT4_G128", 4.25), ("FP8", 8.125)])
def test_sizes_and_what_kernels_are_chosen_by(name, bits):
    fmt = channel_format(name, 256)
    assert fmt is channel_format(name, 256)
    assert fmt.bits_per_weight == bits
    assert (fmt.block, fmt.super) == (256, 256)
    assert fmt.folds == (fmt.group == 128) == (name == "INT4_G128")
    assert not fmt.is_float


def test_every_code_of_int4_has_its_nibble():
    codes = np.tile(np.arange(-8, 8, dtype=np.int8), 16).reshape(2, 128)
    fmt = channel_format("INT4", 128)
    raw = np.zeros(2, fmt.dtype)
    raw["d"] = 0.5
    raw["qs"] = (codes[:, :64] & 15) | (codes[:, 64:] << 4)
    tensor = QTensor(fmt, (2, 128), raw.view(np.uint8).reshape(2, -1))
    assert np.array_equal(dequantize(tensor), codes * np.float32(0.5))


@pytest.mark.parametrize(("name", "k"), [("INT8", 1), ("INT4", 192), ("INT4_G128", 64), ("FP8", 0), ("INT5", 128)])
def test_what_no_row_can_be_made_for(name, k):
    with pytest.raises(QuantFormatError, match=rf"{name}.*allowed"):
        channel_format(name, k)
