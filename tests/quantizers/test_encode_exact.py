"""The formats without a search: the same bytes as the gguf package and NumPy write."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf import quants as gguf_quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from octavo.formats import by_name
from octavo.quantizers import encode
from tests.sampling import some

EXACT = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]

# Where 1 / scale overflows (scales below 2^-128) the gguf package casts Inf to an integer, which is undefined.
_magnitude = st.floats(2.0**-100, 2.0**13, width=32)
_value = st.one_of(st.just(0.0), _magnitude, _magnitude.map(lambda v: -v))


def by_gguf(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf_quants.quantize(x, GGMLQuantizationType(by_name(name).gguf)).view(np.uint8)


@pytest.mark.parametrize("name", EXACT)
def test_the_same_bytes_as_gguf(name):
    rng = np.random.default_rng(0)
    plain = rng.normal(size=(64, 512)).astype(np.float32)
    for x in (
        plain,
        plain * 10.0 ** rng.integers(-30, 4, (64, 1)).astype(np.float32),
        np.where(rng.random(plain.shape) < 0.9, np.float32(0), plain),
        np.round(plain * 4),  # ties of magnitude, and halves
        np.round(plain * 4) / 2,
        np.abs(plain) + 3,
        np.zeros((2, 64), np.float32),
        np.full((2, 64), -0.0, np.float32),
        np.tile(np.array([1.0, -1.0], np.float32), (3, 64)),
    ):
        values = np.ascontiguousarray(x, np.float32)
        assert np.array_equal(encode(values, name), by_gguf(name, values))


@pytest.mark.parametrize("name", some(EXACT, 4))
def test_the_same_bytes_as_gguf_for_any_values(name):
    @settings(max_examples=25, deadline=None)
    @given(arrays.arrays(np.float32, (1, 32), elements=_value))
    def check(x):
        assert np.array_equal(encode(x, name), by_gguf(name, x))

    check()


def test_f16_as_numpy_rounds_it():
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[np.abs(x) < 65520]
    x = np.r_[x, np.arange(0, 3000) * np.float32(2.0**-25), np.float32(65519)].astype(np.float32)[None]
    assert np.array_equal(encode(x, "F16"), x.astype(np.float16).view(np.uint8))
