"""Quantizers as functions: the definition's results for every kind of input, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from octavo import ops
from octavo.backends.gpu.matmul.mmq.quantize import MMQ_LAYOUTS, mmq_reference
from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.table import FORMATS
from octavo.ops import definition, weight_only
from tests.sampling import slow

X = np.random.default_rng(3).standard_normal((6, 256)).astype(np.float32)
QUICK = {"F16", "Q8_0", "Q4_K", "IQ4_NL"}
"""Formats whose products run by default: numbers, codes, minima, a table. Op cases have one of each class of layout."""


def agree(x: np.ndarray[Any, Any], granularity: Any) -> None:
    """Results are the definition's, to the bit, whatever the strides."""
    plain = x.astype(np.float32)
    for made, expected in (
        (ops.quantize_int8(x, granularity), definition.quantize_int8(plain, granularity)),
        (ops.quantize_int8(x.T.copy().T, granularity, False), definition.quantize_int8_zero(plain, granularity)),
    ):
        for part, right in zip(made, expected, strict=True):
            assert (part.dtype, part.shape) == (right.dtype, right.shape)
            assert part.tobytes() == right.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (1, 1), (6, 100), (5, 333), (40, 1024)])
@pytest.mark.parametrize("scale", [1, 1e-38, 1e-42, 3e-45, 1e38])
def test_int8_is_the_definition(dtype: Any, shape: tuple[int, int], scale: float) -> None:
    """Of floats of one sign and of both, zeros, halves between codes, subnormal numbers and the largest."""
    rows, k = shape
    x = np.clip(np.random.default_rng(k).standard_normal(shape) + np.arange(rows)[:, None] % 3 - 1, -3, 3)
    x[1:2], x[2:3] = 0, np.rint(np.linspace(-254, 254, k)) / 254
    x = (x * min(scale, 2e4 if dtype == np.float16 else scale)).astype(dtype)
    for granularity in ("tensor", "token", "channel", *(group for group in (1, 9, 20, 64, 512) if k % group == 0)):
        agree(x, granularity)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_int8_of_what_is_not_finite(dtype: Any, odd: float, symmetric: bool) -> None:
    for row, column in ((0, 0), (3, 255), (5, 130)):
        x = X.astype(dtype)
        x[row, column] = odd
        for granularity in ("tensor", "channel", 64):
            with pytest.raises(NonFiniteError, match=rf"x: {odd} at \[{row}, {column}\]"):
                ops.quantize_int8(x, granularity, symmetric)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("granularity", ["tensor", "token", 64])
def test_int8_with_zero_points_gives_values_back(dtype: Any, granularity: Any) -> None:
    x = X.astype(dtype)
    codes, scale, zero = ops.quantize_int8(x, granularity, symmetric=False)
    wide = [np.repeat(s, 64, axis=1) if granularity == 64 else s for s in (scale, zero)]
    assert np.abs((codes.astype(np.float32) - wide[1]) * wide[0] - x.astype(np.float32)).max() <= scale.max() * 0.501


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torch(dtype: torch.dtype) -> None:
    x = torch.from_numpy(X).to(dtype)
    codes, scale, zero = ops.quantize_int8(x, "token", symmetric=False)
    assert (codes.dtype, scale.dtype, zero.dtype) == (torch.int8, torch.float32, torch.int32)
    for kind, type_ in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        values, scale = ops.quantize_fp8(x, kind, "token")  # type: ignore[arg-type]
        assert values.dtype == type_
        assert (values.float() == (x.float() / scale).to(type_).float()).all()


def test_blocks_for_products() -> None:
    codes, scale, sums = ops.quantize_q8_1(X)
    assert (codes.shape, scale.shape, sums.shape) == ((6, 256), (6, 8), (6, 8))
    assert sums == pytest.approx(codes.reshape(6, 8, 32).sum(axis=-1) * scale)
    blocks = X.reshape(1, 2, 3, 256)
    ids = np.array([2, 0], np.int32)
    made = ops.quantize_mmq_q8_1(blocks, "DS4", ids=ids)
    assert (made == mmq_reference(blocks, "DS4", 512, ids)).all()
    assert (ops.quantize_mmq_q8_1(torch.from_numpy(blocks), "DS4", ids=torch.from_numpy(ids)).numpy() == made).all()


def test_the_layout_of_mmq_is_that_of_the_weights() -> None:
    """Sums are wanted for what is added to codes of weights: minima, IQ1's shift, and Q4_0's offset, which is left."""
    formats = {row.name: row for row in FORMATS}
    assert set(MMQ_LAYOUTS) - set(formats) == {"Q1_0"}
    quantized = {name for name, row in formats.items() if not row.is_float}
    assert quantized - set(MMQ_LAYOUTS) == {"Q8_1", "Q8_K", "IQ1_M", "TQ1_0", "TQ2_0"}
    for name in set(MMQ_LAYOUTS) & set(formats):
        row = formats[name]
        summed = row.has_min or name in ("Q4_0", "IQ1_S")
        assert ops.mmq_layout(name) == ("D4" if not summed else "D2S6" if row.group == 16 else "DS4"), name
    with pytest.raises(UsageError, match=r"TQ1_0.*allowed: .*Q2_K"):
        ops.mmq_layout("TQ1_0")


ENCODED = [f.name for f in FORMATS if f.encode is not None]


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in ENCODED])
@pytest.mark.parametrize("m", [5, slow(0), slow(1)])
def test_weight_only_products(name: str, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_only, "CHUNK", 256 * 4)  # of rows: 4 at a time, and a rest
    weight = quantize_reference(np.random.default_rng(0).standard_normal((7, 256)), by_name(name))
    y = ops.matmul(X[:m], weight)
    assert y == pytest.approx(X[:m].astype(np.float64) @ dequantize(weight).T.astype(np.float64), abs=1e-4)
    assert ops.matmul(torch.from_numpy(X[:m]).half(), weight).shape == (m, 7)


@pytest.mark.parametrize("m", [0, 1])
def test_weight_only_products_of_few_tokens(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    test_weight_only_products("Q4_K", m, monkeypatch)


@pytest.mark.parametrize("name", ENCODED)
def test_weight_only_values(name: str) -> None:
    weight = quantize_reference(np.random.default_rng(0).standard_normal((7, 256)), by_name(name))
    assert (ops.dequantize(weight) == dequantize(weight)).all()


def test_what_is_refused() -> None:
    for granularity, said in ((0, "groups of 0"), (100, "what divides K = 256"), ("row", "granularity 'row'"),
                              ("block", "of int8")):
        with pytest.raises(UsageError, match=said):
            ops.quantize_int8(X, granularity)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="x is float64"):
        ops.quantize_int8(X.astype(np.float64))
    with pytest.raises(UsageError, match="fp8 type 'e3m4'"):
        ops.quantize_fp8(X, kind="e3m4")  # type: ignore[call-overload]
    with pytest.raises(NonFiniteError, match=r"nan at \[0, 3\]"):
        ops.quantize_fp8(np.where(np.arange(256) == 3, np.nan, X).astype(np.float32))
    with pytest.raises(QuantFormatError, match="multiples of 32"):
        ops.quantize_q8_1(X[:, :40])
    weight = quantize_reference(X, FORMATS[0])
    with pytest.raises(UsageError, match="rows differ in length"):
        ops.matmul(X[:, :128], weight)
    with pytest.raises(UsageError, match="not a matrix"):
        ops.matmul(X, quantize_reference(X[None], FORMATS[0]))
    with pytest.raises(UsageError, match="layout 'D5'"):
        ops.quantize_mmq_q8_1(X[None, None], "D5")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="padded is 100"):
        ops.quantize_mmq_q8_1(X[None, None], "D4", padded=100)
    with pytest.raises(UsageError, match=r"ids from 0 to 9 \(allowed: 0 to 5\)"):
        ops.quantize_mmq_q8_1(X[None, None], "D4", ids=np.array([0, 9], np.int32))


def test_names_that_there_are_none_of() -> None:
    with pytest.raises(AttributeError, match="no attribute 'int4_gemm'"):
        ops.int4_gemm  # noqa: B018
    assert all(callable(getattr(ops, name)) for name in ops.__all__)
