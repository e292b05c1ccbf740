"""Products on the CPU against their definition: shapes, epilogues, strides, limits of sums, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo import ops
from octavo.errors import BackendError, UsageError
from octavo.ops import definition
from octavo.ops.op_products import MOST_K, MOST_K_ZERO

RNG = np.random.default_rng(7)

SHAPES = [(1, 1, 1), (1, 16, 64), (2, 37, 100), (3, 5, 64), (7, 48, 4100), (8, 33, 130), (17, 20, 65), (37, 35, 4200)]
BOUND = {"f32": 1e-6, "f16": 1.1 * 2**-11, "bf16": 1.1 * 2**-8}


def gaussian(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def near(y: Any, expected: Any, out_dtype: str = "f32") -> None:
    """Within a unit of rounding of the largest value, of the type that was asked for, and of all numbers."""
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
    wide, right = y.astype(np.float64), expected.astype(np.float64)
    assert np.isfinite(wide).all()
    assert np.abs(wide - right).max(initial=0) <= BOUND[out_dtype] * np.abs(right).max(initial=0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
def test_int8(shape: tuple[int, int, int], symmetric: bool) -> None:
    m, n, k = shape
    a, scale_a, *zero = ops.quantize_int8(gaussian(m, k) + 0.5, "token", symmetric)
    b, scale_b = ops.quantize_int8(gaussian(n, k), "channel")
    zero_a = zero[0] if zero else None
    near(ops.int8_gemm(a, b, scale_a, scale_b, zero_a=zero_a),
         definition.int8_gemm(a, b, scale_a, scale_b, zero_a=zero_a))


@pytest.mark.parametrize("out_dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
@pytest.mark.parametrize("m", [3, 21])
def test_epilogues(m: int, activation: Any, out_dtype: Any) -> None:
    n, k = 35, 96
    a, scale_a, zero_a = ops.quantize_int8(gaussian(m, k), "tensor", symmetric=False)
    b, scale_b = ops.quantize_int8(gaussian(n, k), "tensor")
    more: dict[str, Any] = {
        "zero_a": zero_a, "bias": gaussian(n).astype(np.float16), "activation": activation,
        "residual": gaussian(m, n).astype(definition.out_type(out_dtype)), "out_dtype": out_dtype,
    }
    expected = definition.int8_gemm(a, b, scale_a, scale_b, **more)
    near(ops.int8_gemm(a, b, scale_a, scale_b, **more), expected, out_dtype)


EXTREMES = np.array([-1e38, -3e38, -3.4e38, -np.inf, np.nan, np.inf, 3e38, 1e5, -1e5, -100, -88.5, -0.0, 0, 1], "f4")


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("m", [1, 9])
def test_activations_of_extreme_sums(m: int, activation: Any) -> None:
    """Sums of 0 with the extremes as bias: 0 from the least finite numbers on, NaN from -Inf."""
    a, b, n = np.zeros((m, 128), np.int8), np.zeros((len(EXTREMES), 128), np.int8), len(EXTREMES)
    expected = np.tile(definition.activate(EXTREMES, activation), (m, 1))
    y = ops.int8_gemm(a, b, ONE, ONE, bias=EXTREMES, activation=activation)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-36)
    weight = ops.quantize_w4a8(np.zeros((n, 128), np.float32))
    y = ops.w4a8_gemm(a, weight, ONE, bias=EXTREMES, activation=activation)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-36)


@pytest.mark.parametrize(
    ("shape", "group"),
    [((1, 16, 128), 64), ((2, 37, 96), 32), ((7, 18, 640), 128), ((9, 33, 256), 64), ((37, 20, 192), 96)],
    ids=str,
)
@pytest.mark.parametrize("symmetric", [True, False])
def test_int8_with_scales_of_groups(shape: tuple[int, int, int], group: int, symmetric: bool) -> None:
    m, n, k = shape
    x, w = gaussian(m, k) + 0.5, gaussian(n, k)
    a, scale_a, *zero = ops.quantize_int8(x, group, symmetric)
    b, scale_b = ops.quantize_int8(w, group)
    more: dict[str, Any] = {"zero_a": zero[0] if zero else None, "bias": gaussian(n), "residual": gaussian(m, n)}
    y = ops.int8_gemm(a, b, scale_a, scale_b, **more)
    near(y, definition.int8_gemm(a, b, scale_a, scale_b, **more))
    of_a, of_b = np.repeat(scale_a, group, axis=1), np.repeat(scale_b, group, axis=1)
    values = (a - np.repeat(zero[0], group, axis=1) if zero else a.astype(np.float64)) * of_a
    right = values @ (b * of_b).T.astype(np.float64) + more["bias"] + more["residual"]
    np.testing.assert_allclose(y, right, rtol=0, atol=2e-6 * np.abs(right).max())
    assert np.linalg.norm(y - more["bias"] - more["residual"] - x @ w.T) / np.linalg.norm(x @ w.T) < 0.02


def test_groups_of_one_operand_beside_scales_of_rows_of_the_other() -> None:
    a, scale_a = ops.quantize_int8(gaussian(3, 4, 256), 64)
    b, scale_b = ops.quantize_int8(gaussian(18, 256), "channel")
    assert scale_a.shape == (3, 4, 4)
    y = ops.int8_gemm(a, b, scale_a, scale_b, activation="silu", out_dtype="f16")
    expected = definition.int8_gemm(a.reshape(12, 256), b, scale_a.reshape(12, 4), scale_b, activation="silu")
    near(y, expected.reshape(3, 4, 18).astype(np.float16), "f16")
    y = ops.int8_gemm(b, a[0], scale_b, scale_a[0])
    near(y, definition.int8_gemm(b, a[0], scale_b, scale_a[0]))
    assert ops.int8_gemm(a[:, :0], b, scale_a[:, :0], scale_b).shape == (3, 0, 18)


@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize("shape", [(1, 5, 128), (2, 40, 256), (7, 16, 4224), (9, 33, 384), (40, 17, 4352)], ids=str)
def test_w4a8(shape: tuple[int, int, int], group: Any) -> None:
    m, n, k = shape
    a, scale_a = ops.quantize_int8(gaussian(m, k), "token")
    weight = ops.quantize_w4a8(gaussian(n, k), group)
    more: dict[str, Any] = {"bias": gaussian(n), "activation": "silu", "residual": gaussian(m, n)}
    near(ops.w4a8_gemm(a, weight, scale_a, **more), definition.w4a8_gemm(a, weight, scale_a, **more))


def test_w4a8_takes_every_code_and_scale() -> None:
    """All codes from -8 to 7, with scales whose products lie at halves and reach -128."""
    codes = np.tile(np.arange(-8, 8, dtype=np.int8), (9, 8))
    scales = np.array([0, 0.5, 1.5, 2.5, 0.25, 3.75, 15.9, 16, 1 / 3]).astype(np.float16)[:, None]
    from octavo.formats.rows import pack_int4
    from octavo.ops.w4a8 import W4A8Weight

    weight = W4A8Weight(pack_int4(codes), np.ones(9, np.float32), scales)
    identity = np.eye(128, dtype=np.int8)
    assert (ops.w4a8_gemm(identity, weight, np.float32(1)) == weight.int8().T).all()
    assert (ops.w4a8_gemm(identity[:3], weight, np.float32(1)) == weight.int8().T[:3]).all()


KINDS = [(a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]


@pytest.mark.parametrize("m", [5, 9])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("by", [("tensor", "tensor"), ("token", "channel"), (128, "block")], ids=str)
def test_fp8(m: int, kinds: Any, by: tuple[Any, Any]) -> None:
    x, w = gaussian(m, 256), gaussian(130, 256)
    (a, scale_a), (b, scale_b) = ops.quantize_fp8(x, kinds[0], by[0]), ops.quantize_fp8(w, kinds[1], by[1])
    bias = gaussian(130)
    y = ops.fp8_gemm(a, b, scale_a, scale_b, bias=bias)
    near(y, definition.fp8_gemm(a, b, scale_a, scale_b, bias=bias))
    exact = x @ w.T + bias
    assert np.linalg.norm(y - exact) / np.linalg.norm(exact) < (0.1 if "e5m2" in kinds else 0.05)


@pytest.mark.few(6)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_fp8_of_any_shape(shape: tuple[int, int, int], kind: Any) -> None:
    m, n, k = shape
    (a, scale_a), (b, scale_b) = ops.quantize_fp8(gaussian(m, k), kind), ops.quantize_fp8(gaussian(n, k), kind)
    near(ops.fp8_gemm(a, b, scale_a, scale_b), definition.fp8_gemm(a, b, scale_a, scale_b))


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_every_number_of_fp8(kinds: Any, m: int) -> None:
    """The smallest, the largest, NaN and Inf, each by one; whatever else is in a row of NaN is NaN."""
    every = np.arange(256, dtype=np.uint8).view(definition.fp8_dtype(kinds[1]))[:, None]
    one = np.ones((m, 1), definition.fp8_dtype(kinds[0]))
    y = ops.fp8_gemm(one, every, ONE, ONE)
    np.testing.assert_array_equal(y, np.tile(every.astype(np.float32).T, (m, 1)))
    rows = np.ones((3, 70), every.dtype)
    rows[1, 64] = np.nan
    assert np.isnan(ops.fp8_gemm(np.ones((m, 70), one.dtype), rows, ONE, ONE)).tolist() == [[False, True, False]] * m


@pytest.mark.parametrize("m", [1, 9])
def test_sums_hold_up_to_their_limit(m: int) -> None:
    """The largest sum that int32 holds, and at the next K, where it would be 2^31, the right one all the same."""
    one = np.float32(1)
    for k in (MOST_K, MOST_K + 1):
        a, b = np.full((m, k), -128, np.int8), np.full((1, k), -128, np.int8)
        b = np.concatenate([b, np.full((1, k), 127, np.int8)])
        assert ops.int8_gemm(a, b, one, one).tolist() == [[np.float32(k * 2**14), np.float32(-k * 128 * 127)]] * m
    assert MOST_K + 1 == 131_072
    for k in (MOST_K_ZERO, MOST_K_ZERO + 1):
        a, b = np.full((m, k), 127, np.int8), np.full((1, k), -128, np.int8)
        y = ops.int8_gemm(a, b, one, one, zero_a=np.full(m, -128, np.int32))
        assert y.tolist() == [[np.float32(-k * 255 * 128)]] * m


@pytest.mark.parametrize("shape", [(0, 4, 64), (4, 0, 64), (3, 4, 0)], ids=str)
def test_nothing_to_add_up(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = np.zeros((m, k), np.int8), np.zeros((n, k), np.int8)
    y = ops.int8_gemm(a, b, np.float32(1), np.float32(1), bias=np.full(n, 2, np.float32))
    assert y.tolist() == [[2.0] * n] * m
    weight = ops.quantize_w4a8(np.zeros((n, 2 * k), np.float32))
    assert ops.w4a8_gemm(np.zeros((m, 2 * k), np.int8), weight, np.float32(1)).shape == (m, n)


@pytest.mark.parametrize("m", [3, 20])
def test_any_strides(m: int) -> None:
    a = RNG.integers(-128, 128, (64, m)).astype(np.int8).T
    b = RNG.integers(-128, 128, (2 * 19, 130)).astype(np.int8)[::-2, 1:65]
    residual = gaussian(19, 2 * m)[:, ::2].T
    scale_a, scale_b = np.abs(gaussian(m, 2))[:, :1], np.abs(gaussian(19))[::-1]
    bias = gaussian(38)[::2]
    y = ops.int8_gemm(a, b, scale_a, scale_b, bias=bias, residual=residual)
    near(y, definition.int8_gemm(a, b, scale_a, scale_b, bias=bias, residual=residual))
    weight = ops.quantize_w4a8(gaussian(19, 256), 128)
    wide = RNG.integers(-128, 128, (m, 512)).astype(np.int8)[:, ::2]
    near(ops.w4a8_gemm(wide, weight, scale_a), definition.w4a8_gemm(wide, weight, scale_a))


def test_results_are_the_same_from_run_to_run() -> None:
    a, scale_a = ops.quantize_int8(gaussian(40, 300), "token")
    b, scale_b = ops.quantize_int8(gaussian(50, 300), "channel")
    first = ops.int8_gemm(a, b, scale_a, scale_b, activation="gelu")
    assert all((ops.int8_gemm(a, b, scale_a, scale_b, activation="gelu") == first).all() for _ in range(3))


@pytest.mark.parametrize("out_dtype", ["f32", "bf16"])
def test_torch_in_torch_out(out_dtype: Any) -> None:
    torch.manual_seed(0)
    x, w, bias = torch.randn(5, 128), torch.randn(24, 128), torch.randn(24).bfloat16()
    a, scale_a = ops.quantize_int8(x, "token")
    b, scale_b = ops.quantize_int8(w, "channel")
    y = ops.int8_gemm(a, b, scale_a, scale_b, bias=bias, out_dtype=out_dtype)
    assert y.dtype == (torch.bfloat16 if out_dtype == "bf16" else torch.float32)
    exact = x @ w.T + bias.float()
    assert (y.float() - exact).norm() / exact.norm() < 0.03
    weight = ops.quantize_w4a8(w.bfloat16(), 128)
    assert (ops.w4a8_gemm(a, weight, scale_a) - x @ w.T).norm() / (x @ w.T).norm() < 0.15
    fp8, fp8_scale = ops.quantize_fp8(x, "e4m3", "token")
    assert fp8.dtype == torch.float8_e4m3fn
    y = ops.fp8_gemm(fp8, ops.quantize_fp8(w)[0], fp8_scale, ops.quantize_fp8(w)[1])
    assert (y - x @ w.T).norm() / (x @ w.T).norm() < 0.05


@pytest.mark.parametrize(("n", "k"), [(4, 512), (1, 128), (130, 100), (2, 256)])
def test_blocks_of_as_many_scales_as_rows(n: int, k: int) -> None:
    """A row of blocks has as many scales as there are channels, and still none for each of these."""
    x, w = gaussian(3, k), gaussian(n, k)
    a, scale_a = ops.quantize_fp8(np.pad(x, ((0, 0), (0, -k % 128))), "e4m3", 128)
    b, scale_b = ops.quantize_fp8(w, "e4m3", "block")
    near(ops.fp8_gemm(a[:, :k], b, scale_a, scale_b), definition.fp8_gemm(a[:, :k], b, scale_a, scale_b))


A, B = np.ones((3, 64), np.int8), np.ones((5, 64), np.int8)
ONE = np.ones((), np.float32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a": A.astype(np.uint8)}, "a is uint8"),
        ({"a": A[0, 0]}, r"a has no dimensions, but must be \[..., K\]"),
        ({"b": B[0]}, r"b is int8 \[64\]"),
        ({"b": B[:, :32]}, "rows differ in length"),
        ({"b": B.astype(np.float32)}, "b is float32"),
        ({"scale_a": np.ones(5, np.float32)}, r"scale_a is float32 \[5\] \(allowed: float32 \[\], \[3\] or \[3, 1\]\)"),
        ({"scale_a": np.ones((1, 3), np.float32)}, "scale_a"),
        ({"scale_b": np.ones((5, 3), np.float32)}, r"scale_b is \[5, 3\] with K = 64 .*multiple of 32 values each"),
        ({"scale_b": np.ones((5, 4), np.float32)}, "one number of groups"),
        ({"scale_b": np.ones((4, 2), np.float32)}, r"scale_b is float32 \[4, 2\]"),
        ({"scale_b": np.ones((5, 2))}, "scale_b is float64"),
        ({"zero_a": np.full((3, 2), 200, np.int32)}, r"zero_a has 200"),
        ({"scale_b": np.ones(5)}, "scale_b is float64"),
        ({"zero_a": np.ones(3, np.int64)}, "zero_a is int64"),
        ({"zero_a": np.array([0, 128, 0], np.int32)}, r"zero_a has 128 \(allowed: -128 to 127\)"),
        ({"zero_a": np.full((), -(2**31), np.int32)}, "zero_a has -2147483648"),
        ({"bias": np.ones(3, np.float32)}, "bias"),
        ({"bias": np.ones(5)}, "bias is float64"),
        ({"residual": np.ones((5, 3), np.float32)}, "residual"),
        ({"activation": "tanh"}, "activation 'tanh'"),
        ({"out_dtype": "f64"}, "out_dtype 'f64'"),
        ({"a": [[1]]}, "an argument is list"),
        ({"a": torch.ones((3, 64), dtype=torch.int8)}, "all NumPy, or all torch"),
        ({"a": torch.ones((3, 64), dtype=torch.int8, device="meta")}, "NumPy and torch on meta"),
    ],
)
def test_what_int8_refuses(change: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"a": A, "b": B, "scale_a": ONE, "scale_b": ONE, **change}
    with pytest.raises(UsageError, match=said):
        ops.int8_gemm(**arguments)


def test_what_other_products_refuse() -> None:
    weight = ops.quantize_w4a8(gaussian(4, 128))
    with pytest.raises(UsageError, match="rows differ in length"):
        ops.w4a8_gemm(A, weight, ONE)
    with pytest.raises(UsageError, match="all NumPy, or all torch"):
        ops.w4a8_gemm(np.ones((3, 128), np.int8), weight.to("cpu"), ONE)
    a, scale = ops.quantize_fp8(gaussian(3, 256), "e4m3", 128)
    b, scale_b = ops.quantize_fp8(gaussian(200, 256), "e4m3", "block")
    with pytest.raises(UsageError, match="scale_a"):
        ops.fp8_gemm(a, b, scale[:, :1].repeat(3, axis=1), scale_b)
    with pytest.raises(UsageError, match="a is int8"):
        ops.fp8_gemm(A, B, ONE, ONE)


def test_tensors_on_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.backends.gpu.device import torch_device

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch_device, "find_driver", lambda: None)
    torch_device.target.cache_clear()
    a, b = (torch.ones(x.shape, dtype=torch.int8, device="meta") for x in (A, B))
    one = torch.ones((), device="meta")
    with pytest.raises(BackendError, match="device gpu: no GPU driver was found"):
        ops.int8_gemm(a, b, one, one)
