"""NaN and Inf in stored weights are counted."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.formats import FORMATS, QTensor, by_name
from octavo.formats.spec import BlockFormat
from octavo.io.gguf import scan_non_finite

SCALES = [(f, x.name) for f in FORMATS for x in f.fields if x.name in ("d", "dmin", "m") and x.dtype.kind == "f"]


def zeros(fmt: BlockFormat, n: int) -> QTensor:
    return QTensor(fmt, (n, fmt.block), np.zeros((n, fmt.block_bytes), np.uint8))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_zeros_are_finite(fmt: BlockFormat) -> None:
    assert scan_non_finite(zeros(fmt, 3)) == 0


def test_there_are_scales_to_test() -> None:
    assert len(SCALES) >= 12


@pytest.mark.parametrize(("fmt", "field"), SCALES, ids=lambda x: getattr(x, "name", x))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_bad_scale_shows_in_every_weight_of_its_block(fmt: BlockFormat, field: str, value: float) -> None:
    tensor = zeros(fmt, 5000)  # more than a chunk
    records = tensor.data.view(fmt.dtype)[:, 0]
    records[field][1] = value
    records[field][4999] = value
    assert scan_non_finite(tensor) == 2 * fmt.block


def test_plain_values_are_counted_one_by_one() -> None:
    values = np.zeros((3, 70_000), np.float32)
    values[0, 0], values[2, 69_999], values[1, 5] = np.nan, np.inf, -np.inf
    assert scan_non_finite(QTensor(by_name("F32"), values.shape, values.view(np.uint8))) == 3


def test_brain_floats() -> None:
    bits = np.zeros((1, 8), np.uint16)
    bits[0, 3] = 0x7F80
    assert scan_non_finite(QTensor(by_name("BF16"), bits.shape, bits.view(np.uint8))) == 1


def test_a_finite_scale_that_overflows() -> None:
    tensor = zeros(by_name("MXFP4"), 1)
    tensor.data[0] = [255, 0x77, *[0] * 15]  # 2^127 times the largest code, twice, and zeros
    assert scan_non_finite(tensor) == 2
