"""Numbers to 8 bits: bit for bit what `octavo.ops.definition` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.matmul.w8a8.quantize import quantize_fp8, quantize_int8
from octavo.errors import UsageError
from octavo.ops import definition
from tests.sampling import some

WHERE = torch_device.target().device
GRANULARITIES: list[Any] = ["tensor", "token", "channel", 4, 60]


def drawn(rows: int, k: int) -> np.ndarray:
    """Numbers of very different sizes, a row of zeros, and one of a single sign."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(-3, 3, (rows, 1))
    x[1], x[2] = 0, np.abs(x[2])
    return x.astype(np.float32)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_int8(granularity: Any, symmetric: bool) -> None:
    x = drawn(5, 120)
    found = quantize_int8(torch.from_numpy(x).to(WHERE), granularity, symmetric)
    expected = (definition.quantize_int8 if symmetric else definition.quantize_int8_zero)(x, granularity)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.cpu().numpy(), b)
        assert a.cpu().numpy().dtype == b.dtype


@pytest.mark.parametrize("kind", some(["e4m3", "e5m2"], 1))
@pytest.mark.parametrize("granularity", some([*GRANULARITIES, "block"], 3))
def test_fp8(kind: Any, granularity: Any) -> None:
    x = drawn(5, 120) if granularity != "block" else drawn(130, 200)
    codes, scale = quantize_fp8(torch.from_numpy(x).to(WHERE), kind, granularity)
    values, scales = definition.quantize_fp8(x, kind, granularity)
    np.testing.assert_array_equal(codes.view(torch.uint8).cpu().numpy(), values.view(np.uint8))
    np.testing.assert_array_equal(scale.cpu().numpy(), scales)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_fp8_of_every_number_and_what_is_halfway(kind: Any) -> None:
    """The largest number is in each row, so that the scale is 1."""
    every = np.arange(256, dtype=np.uint8).view(definition.fp8_dtype(kind)).astype(np.float32)
    every = np.sort(every[np.isfinite(every)])
    x = np.concatenate([every, (every[1:] + every[:-1]) / 2, every * np.float32(1.001)])
    x = np.clip(x, every[0], every[-1])[None]
    codes, scale = quantize_fp8(torch.from_numpy(x).to(WHERE), kind, "token")
    values, _ = definition.quantize_fp8(x, kind, "token")
    assert float(scale) == 1
    np.testing.assert_array_equal(codes.view(torch.uint8).cpu().numpy(), values.view(np.uint8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_and_strides(dtype: torch.dtype) -> None:
    x = torch.from_numpy(drawn(6, 64)).to(dtype)
    plain = x.float().numpy()
    for view, same in ((x, plain), (x[::2, 3:40], plain[::2, 3:40]), (x.t(), plain.T)):
        codes, scale = quantize_int8(view.to(WHERE), "token")
        expected = definition.quantize_int8(np.ascontiguousarray(same), "token")
        np.testing.assert_array_equal(codes.cpu().numpy(), expected[0])
        np.testing.assert_array_equal(scale.cpu().numpy(), expected[1])


def test_no_rows_no_values() -> None:
    for shape in ((0, 64), (3, 0)):
        codes, scale = quantize_int8(torch.zeros(shape, device=WHERE), "token")
        assert tuple(codes.shape) == shape
        assert not scale.any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: quantize_int8(x, 24), "groups of 24 .allowed: what divides K = 64"),
        (lambda x: quantize_int8(x, "row"), "granularity 'row'"),
        (lambda x: quantize_int8(x, "block"), "granularity 'block' of int8"),
        (lambda x: quantize_int8(x[0]), r"float32 \[64\]"),
        (lambda x: quantize_int8(x.int()), "int32"),
        (lambda x: quantize_fp8(x, "e3m4"), "fp8 type 'e3m4' .allowed: e4m3, e5m2"),
    ],
)
def test_what_does_not_fit_is_said(call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call(torch.zeros(2, 64, device=WHERE))
