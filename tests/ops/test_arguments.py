"""Arguments of `octavo.ops`: leading dimensions, names of types and granularities, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from octavo import ops
from octavo.errors import OctavoError, QuantFormatError, UsageError
from octavo.formats import by_name, quantize_reference

RNG = np.random.default_rng(4)
X = RNG.standard_normal((2, 3, 128)).astype(np.float32)
W = RNG.standard_normal((5, 128)).astype(np.float32)
ROWS = X.reshape(6, 128)
B, SCALE_B = ops.quantize_int8(W, "channel")


def as_given(kind: str, x: Any) -> Any:
    return torch.from_numpy(x) if kind == "torch" else x


def numbers(x: Any) -> Any:
    return x.float().numpy() if isinstance(x, torch.Tensor) else x.astype(np.float32)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (1, 2, 3), (2, 0)], ids=str)
def test_leading_dimensions_are_rows(kind: str, lead: tuple[int, ...]) -> None:
    rows = int(np.prod(lead))
    x = ROWS[:rows].reshape(*lead, 128)
    residual = RNG.standard_normal((*lead, 5)).astype(np.float32)
    more: dict[str, Any] = {"activation": "silu", "residual": as_given(kind, residual)}
    flat: dict[str, Any] = {**more, "residual": as_given(kind, residual.reshape(rows, 5))}
    given, b, scale_b = as_given(kind, x), as_given(kind, B), as_given(kind, SCALE_B)
    a, scale_a, zero = ops.quantize_int8(given, "token", symmetric=False)
    assert (tuple(a.shape), tuple(scale_a.shape), tuple(zero.shape)) == (x.shape, (*lead, 1), (*lead, 1))
    y = ops.int8_gemm(a, b, scale_a, scale_b, zero_a=zero, **more)
    two = ops.int8_gemm(
        a.reshape(rows, 128), b, scale_a.reshape(rows, 1), scale_b, zero_a=zero.reshape(rows), **flat
    )
    assert tuple(y.shape) == (*lead, 5)
    np.testing.assert_array_equal(numbers(y).reshape(rows, 5), numbers(two))
    bare = ops.int8_gemm(a, b, scale_a[..., 0], scale_b, zero_a=zero[..., 0], **more)
    np.testing.assert_array_equal(numbers(bare), numbers(y))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_leading_dimensions_of_the_others(kind: str) -> None:
    x = as_given(kind, X)
    codes, scale = ops.quantize_int8(x, "token")
    weight = ops.quantize_w4a8(as_given(kind, W), 128)
    assert tuple(ops.w4a8_gemm(codes, weight, scale).shape) == (2, 3, 5)
    stored = quantize_reference(W, by_name("Q4_0"))
    assert tuple(ops.matmul(x, stored).shape) == (2, 3, 5)
    np.testing.assert_array_equal(
        numbers(ops.matmul(x, stored)).reshape(6, 5), ops.matmul(ROWS, stored)
    )
    for by, wide in (("token", 1), (64, 2), (128, 1)):
        values, scales = ops.quantize_fp8(x, by)  # type: ignore[call-overload]
        assert (tuple(values.shape), tuple(scales.shape)) == ((2, 3, 128), (2, 3, wide))
    fp8, fp8_scale = ops.quantize_fp8(x, 128)
    blocks, block_scale = ops.quantize_fp8(as_given(kind, W), "block")
    assert tuple(ops.fp8_gemm(fp8, blocks, fp8_scale, block_scale).shape) == (2, 3, 5)
    assert tuple(ops.quantize_int8(x)[1].shape) == ()
    with pytest.raises(UsageError, match=r"granularity 'block' needs two dimensions, and x is \[2, 3, 128\]"):
        ops.quantize_fp8(x, "block")
    with pytest.raises(UsageError, match="residual is float32"):
        ops.int8_gemm(codes, as_given(kind, B), scale, as_given(kind, SCALE_B), residual=as_given(kind, X[0]))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("float16", np.float16), (np.float16, np.float16), (np.dtype("f2"), np.float16), (torch.float16, np.float16),
        ("bfloat16", ml_dtypes.bfloat16), (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
        (torch.bfloat16, ml_dtypes.bfloat16), ("float32", np.float32), (torch.float32, np.float32),
    ],
)
def test_types_of_results_by_any_name(given: Any, wanted: Any) -> None:
    a, scale_a = ops.quantize_int8(ROWS, "token")
    assert ops.int8_gemm(a, B, scale_a, SCALE_B, out_dtype=given).dtype == wanted


@pytest.mark.parametrize("given", ["f64", np.float64, np.int32, torch.float64, None, 3, "half"])
def test_types_that_no_result_has(given: Any) -> None:
    a, scale_a = ops.quantize_int8(ROWS, "token")
    with pytest.raises(UsageError, match=r"out_dtype .* \(allowed: float32, float16, bfloat16, f32"):
        ops.int8_gemm(a, B, scale_a, SCALE_B, out_dtype=given)


def test_granularities() -> None:
    for function in (ops.quantize_int8, ops.quantize_fp8):
        by_numpy, by_python = function(W, np.int64(64)), function(W, granularity=64)  # type: ignore[call-overload]
        assert by_numpy[1].shape == by_python[1].shape == (5, 2)
        for odd in (True, 64.0, None, "row", np.bool_(True)):
            with pytest.raises(UsageError, match="granularity"):
                function(W, odd)  # type: ignore[call-overload]


def test_granularity_and_kind_in_either_order() -> None:
    for first, second in ((("channel", "e5m2"), ("e5m2", "channel")), (("tensor", "e4m3"), ("e4m3",))):
        found, expected = ops.quantize_fp8(W, *first), ops.quantize_fp8(W, *second)  # type: ignore[call-overload]
        assert found[0].dtype == expected[0].dtype
        assert found[0].tobytes() == expected[0].tobytes()
    assert ops.quantize_fp8(W, kind="e5m2", granularity="channel")[1].shape == (5, 1)
    with pytest.raises(UsageError, match="fp8 type 'token'"):
        ops.quantize_fp8(W, "channel", "token")  # type: ignore[call-overload]


def test_a_weight_that_is_a_plain_array() -> None:
    a, scale_a = ops.quantize_int8(ROWS, "token")
    odd: Any = W
    for call, error in (
        (lambda: ops.matmul(ROWS, odd), "weight is ndarray .allowed: a QTensor"),
        (lambda: ops.dequantize(odd), "weight is ndarray .allowed: a QTensor"),
        (lambda: ops.w4a8_gemm(a, odd, scale_a), "weight is ndarray, not a W4A8Weight"),
        (lambda: ops.export_qqq(odd), "weight is ndarray, not a W4A8Weight"),
        (lambda: ops.W4A8Weight([[0]], [1.0]), "packed is list .allowed: a NumPy array or a torch tensor"),
        (lambda: ops.import_qqq({"B": [[0]], "s_channel": [1.0]}), "B is list"),  # type: ignore[dict-item]
    ):
        with pytest.raises(OctavoError, match=error):
            call()


@pytest.mark.filterwarnings("ignore")  # torch warns of nested and quantized tensors
def test_tensors_whose_memory_is_not_their_values() -> None:
    negative = torch.randn(4, 128, dtype=torch.complex64).conj().imag
    quantized = torch.quantize_per_tensor(torch.randn(4, 128), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.randn(2, 128), torch.randn(3, 128)])
    jagged = torch.nested.nested_tensor([torch.randn(2, 128), torch.randn(3, 128)], layout=torch.jagged)
    for x, said in (
        (negative, r"negated or conjugated view; call resolve_neg"), (quantized, "a tensor is quantized"),
        (nested, "a tensor is nested"), (jagged, "a tensor is nested"),
    ):
        for function in (ops.quantize_int8, ops.quantize_fp8, ops.quantize_q8_1, ops.quantize_w4a8):
            with pytest.raises(UsageError, match=said):
                function(x)  # type: ignore[operator]
    codes, scale = ops.quantize_int8(negative.resolve_neg(), "token")
    assert (codes.shape, scale.shape) == ((4, 128), (4, 1))


@pytest.mark.parametrize("odd", [W * 1j, W > 0, W.astype(str), W.astype(object)], ids=lambda x: str(x.dtype))
def test_4_bit_weights_of_no_real_numbers(odd: Any) -> None:
    with pytest.raises(QuantFormatError, match=r"weights are .* \(allowed: floats or integers\)"):
        ops.quantize_w4a8(odd)
    if odd.dtype.kind in "cb":
        with pytest.raises(QuantFormatError, match="weights are"):
            ops.quantize_w4a8(torch.from_numpy(odd))
