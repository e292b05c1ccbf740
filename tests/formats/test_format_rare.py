"""GGUF types outside the table: sizes, loading to F16 or F32, and what is refused."""

import logging

import gguf
import numpy as np
import pytest

from octavo.errors import QuantFormatError
from octavo.formats import FORMATS, dequantize, rare


@pytest.fixture(autouse=True)
def _forget_what_was_logged():
    rare._log_reason.cache_clear()


def _blocks(gguf_id: int, blocks: int = 40, seed: int = 0) -> tuple[np.ndarray, tuple[int, int]]:
    """Random blocks [4, bytes] whose f16 scale, wherever it lies, is below 2; and their shape."""
    block, size = rare.block_layout(gguf_id)
    data = np.random.default_rng(seed).integers(0, 256, (blocks, size), dtype=np.uint8) & 0xBF
    return data.reshape(4, -1), (4, blocks // 4 * block)


def test_sizes_of_every_type():
    assert not set(rare.RARE) & {f.gguf for f in FORMATS}
    for kind, layout in gguf.GGML_QUANT_SIZES.items():
        expected = (32, 36) if kind.name == "Q8_1" else layout
        assert rare.block_layout(int(kind)) == expected
        assert rare.type_name(int(kind)) == kind.name
    assert rare.block_layout(42) == (64, 18)


@pytest.mark.parametrize("gguf_id", [4, 5, 31, 32, 33, 36, 37, 38, 43, 99, 2**32 - 1])
def test_removed_and_unknown_types(gguf_id):
    assert rare.block_layout(gguf_id) is None
    assert rare.type_name(gguf_id) is None
    problem = "was removed" if gguf_id in rare.REMOVED else "unknown"
    with pytest.raises(QuantFormatError, match=rf"'blk\.0\.w'.*{gguf_id}") as error:
        rare.load(gguf_id, (1, 256), np.zeros((1, 18), np.uint8), "blk.0.w")
    assert problem in str(error.value)


def test_one_and_two_bit_blocks_by_definition():
    rng = np.random.default_rng(0)
    for gguf_id, per_byte, values in ((41, 8, [-1, 1]), (42, 4, [-1, 0, 1, 2])):
        codes = rng.integers(0, len(values), rare.block_layout(gguf_id)[0])
        packed = [
            sum(int(c) << (8 // per_byte * i) for i, c in enumerate(codes[j : j + per_byte]))
            for j in range(0, len(codes), per_byte)
        ]
        block = np.concatenate([np.array([0.75], "<f2").view(np.uint8), np.array(packed, np.uint8)])
        t = rare.load(gguf_id, (1, len(codes)), block[None])
        assert dequantize(t)[0].tolist() == [0.75 * values[c] for c in codes]


def test_values_beyond_f16_stay_f32(caplog):
    data = np.zeros((1, 18), np.uint8)
    data[0, :2] = np.array([60000], "<f2").view(np.uint8)
    data[0, 2:] = 0xFF  # codes 3, which read as 2
    t = rare.load(42, (1, 64), data, "huge")
    assert t.format.name == "F32"
    assert np.all(dequantize(t) == np.float32(np.float16(60000)) * 2)
    assert "'huge' has values beyond F16" in caplog.text


def test_non_finite_scales_are_kept_as_they_are():
    data = np.full((2, 18), 0xFF, np.uint8)
    data[0, :2] = np.array([np.inf], "<f2").view(np.uint8)
    data[1, :2] = np.array([np.nan], "<f2").view(np.uint8)
    t = rare.load(41, (2, 128), data)
    assert t.format.name == "F16"
    assert np.all(np.isinf(dequantize(t)[0]))
    assert np.all(np.isnan(dequantize(t)[1]))


def test_the_reason_is_logged_once_a_type(caplog):
    data, shape = _blocks(41)
    with caplog.at_level(logging.WARNING, logger="octavo"):
        rare.load(41, shape, data & 0x3F)
        rare.load(41, shape, data & 0x3F)
    assert caplog.text.count("Q1_0 tensors are decoded to F16") == 1


@pytest.mark.parametrize(
    ("shape", "data"),
    [((1, 100), np.zeros((1, 18), np.uint8)), ((1, 128), np.zeros((1, 17), np.uint8)),
     ((2, 128), np.zeros((1, 18), np.uint8)), ((1, 128), np.zeros((1, 18), np.int8)), ((), np.zeros((), np.uint8))],
)
def test_data_that_does_not_fit(shape, data):
    with pytest.raises(QuantFormatError, match="'w': shape"):
        rare.load(41, shape, data, "w")


def test_many_dimensions():
    data, _ = _blocks(41, blocks=24)
    assert rare.load(41, (2, 2, 768), data.reshape(2, 2, -1)).shape == (2, 2, 768)
