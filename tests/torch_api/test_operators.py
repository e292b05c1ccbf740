"""Products as operators of torch: what `octavo.ops` says, traced as a whole, and no derivatives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import octavo.torch as quantized
from octavo import ops
from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.torch.operators import stored

torch.manual_seed(3)
X, W, BIAS, RESIDUAL = torch.randn(5, 256), torch.randn(24, 256), torch.randn(24), torch.randn(5, 24).half()
A, SCALE_A = ops.quantize_int8(X, "token")
B, SCALE_B = ops.quantize_int8(W, "channel")
LINEAR = torch.nn.Linear(256, 24)
ZERO = torch.randint(-128, 128, (5, 1), dtype=torch.int32)
PER_CHANNEL, GROUPED = ops.quantize_w4a8(W.numpy()).to("cpu"), ops.quantize_w4a8(W.numpy(), 128).to("cpu")
FP8_A, FP8_B = ops.quantize_fp8(X, "e4m3", 128), ops.quantize_fp8(W, "e4m3", "block")
STORED, FLOAT4 = (
    quantized.QuantLinear.from_linear(LINEAR, scheme).weight for scheme in ("w4a16-g128", "nvfp4a16")
)

CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "int8 tensor": (quantized.quantize_int8, (X,), {}),
    "int8 token": (quantized.quantize_int8, (X.bfloat16(), "token"), {}),
    "int8 group": (quantized.quantize_int8, (X.t().contiguous().t(), "64"), {}),
    "int8 zero": (quantized.quantize_int8_zero, (X, "token"), {}),
    "int8 nothing": (quantized.quantize_int8_zero, (X[:0], "token"), {}),
    "fp8 token": (quantized.quantize_fp8, (X, "token"), {}),
    "fp8 block": (quantized.quantize_fp8, (X, "block", "e5m2"), {}),
    "int8_gemm of [..., K]": (
        quantized.int8_gemm, (A.reshape(1, 5, 256), B, SCALE_A.reshape(1, 5, 1), SCALE_B, ZERO.reshape(1, 5)), {}
    ),
    "int8 of [..., K]": (quantized.quantize_int8_zero, (X.reshape(5, 1, 256), "64"), {}),
    "int8_gemm": (quantized.int8_gemm, (A, B, SCALE_A, SCALE_B), {}),
    "int8_gemm after": (
        quantized.int8_gemm, (A, B, SCALE_A, SCALE_B, ZERO, BIAS, RESIDUAL), {"activation": "gelu", "out_dtype": "bf16"}
    ),
    "w4a8_gemm": (
        quantized.w4a8_gemm, (A, PER_CHANNEL.packed, SCALE_A, PER_CHANNEL.channel_scale), {"out_dtype": "f16"}
    ),
    "w4a8_gemm groups": (
        quantized.w4a8_gemm, (A, GROUPED.packed, SCALE_A, GROUPED.channel_scale, GROUPED.group_scale, BIAS), {}
    ),
    "stored_gemm": (quantized.stored_gemm, (X.bfloat16(), STORED, "GROUP4_128_F16", None, BIAS), {"out_dtype": "bf16"}),
    "stored_gemm scaled": (
        quantized.stored_gemm, (X.reshape(1, 5, 256), FLOAT4, "NVFP4", torch.tensor(0.5), BIAS), {}
    ),
    "fp8_gemm blocks": (quantized.fp8_gemm, (FP8_A[0], FP8_B[0], FP8_A[1], FP8_B[1], BIAS), {"activation": "silu"}),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", CASES)
def test_torch_finds_no_fault(name: str) -> None:
    """opcheck: schema, fake results against real ones, autograd's registration, tracing with symbolic sizes.

    Its look at the schema multiplies arguments, which torch can't do with fp8."""
    function, arguments, more = CASES[name]
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(function, arguments, more, test_utils=checks[name == "fp8_gemm blocks" :])


def test_results_are_those_of_the_functions() -> None:
    more: dict[str, Any] = {"activation": "gelu", "out_dtype": "f16"}
    y = quantized.int8_gemm(A, B, SCALE_A, SCALE_B, ZERO, BIAS, RESIDUAL, **more)
    assert torch.equal(y, ops.int8_gemm(A, B, SCALE_A, SCALE_B, zero_a=ZERO, bias=BIAS, residual=RESIDUAL, **more))
    for weight in (PER_CHANNEL, GROUPED):
        parts = weight.packed, SCALE_A, weight.channel_scale, weight.group_scale
        y = quantized.w4a8_gemm(A, *parts, BIAS, RESIDUAL, **more)
        assert torch.equal(y, ops.w4a8_gemm(A, weight, SCALE_A, bias=BIAS, residual=RESIDUAL, **more))
    y = quantized.fp8_gemm(FP8_A[0], FP8_B[0], FP8_A[1], FP8_B[1], BIAS, RESIDUAL, **more)
    assert torch.equal(y, ops.fp8_gemm(FP8_A[0], FP8_B[0], FP8_A[1], FP8_B[1], bias=BIAS, residual=RESIDUAL, **more))
    made = quantized.quantize_int8_zero(X, "64")
    assert all(torch.equal(*pair) for pair in zip(made, ops.quantize_int8(X, 64, symmetric=False), strict=True))
    y = quantized.stored_gemm(X, STORED, "GROUP4_128_F16", None, BIAS)
    right = ops.matmul(X, stored(STORED, "GROUP4_128_F16")) + BIAS
    assert (y - right).norm() < 0.01 * right.norm()  # x in 8 bits
    assert torch.ops.octavo.int8_gemm(A, B, SCALE_A, SCALE_B).shape == (5, 24)


def of_floats(x: torch.Tensor) -> torch.Tensor:
    codes, scale = quantized.quantize_int8(x, "token")
    y: torch.Tensor = quantized.int8_gemm(codes, B, scale, SCALE_B, activation="silu")
    return y + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_without_a_break(backend: str) -> None:
    compiled: Callable[..., torch.Tensor] = torch.compile(of_floats, fullgraph=True, dynamic=True, backend=backend)
    for rows in (5, 3, 1):
        assert torch.equal(compiled(X[:rows]), of_floats(X[:rows]))


def test_no_derivative() -> None:
    x = X.clone().requires_grad_()
    scale = SCALE_A.clone().requires_grad_()
    for y in (of_floats(x), quantized.int8_gemm(A, B, scale, SCALE_B), quantized.quantize_fp8(x)[1]):
        with pytest.raises(UsageError, match="backward through a quantized product"):
            y.sum().backward()
    with torch.no_grad():
        assert not of_floats(x).requires_grad


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_refused(device: str) -> None:
    x, a = X.to(device), A.to(device)
    with pytest.raises(UsageError, match=r"\[\] \(allowed: \[..., K\]|x has no dimensions"):
        quantized.quantize_int8(x[0, 0], "token")
    with pytest.raises(UsageError, match="granularity 'row'"):
        quantized.quantize_int8(X, "row")
    with pytest.raises(UsageError, match="out_dtype 'f64'"):
        quantized.int8_gemm(a, B.to(device), SCALE_A.to(device), SCALE_B.to(device), out_dtype="f64")


def test_packed_weights_that_do_not_fit() -> None:
    packed, channels, groups = GROUPED.packed, GROUPED.channel_scale, GROUPED.group_scale
    for parts, said in (
        ((packed[:, :32], SCALE_A, channels), r"packed is uint8 \[24, 32\]"),
        ((packed.view(torch.int8), SCALE_A, channels), "packed is int8"),
        ((packed, SCALE_A, channels[:3]), r"channel_scale is float32 \[3\], not float32 \[24\]"),
        ((packed, SCALE_A, channels, groups.float()), "group_scale is float32"),
        ((packed, SCALE_A, channels, groups[:, :1]), r"not float16 \[24, 2\]"),
        ((packed[:, :64], SCALE_A, channels), "rows differ in length"),
    ):
        with pytest.raises(UsageError, match=said):
            quantized.w4a8_gemm(A, *parts)


def test_stored_rows_that_do_not_fit() -> None:
    for arguments, said in (
        (
            (X, STORED[:, :7], "GROUP4_128_F16"),
            r"rows of GROUP4_128_F16 are torch.uint8 \[24, 7\] \(allowed",
        ),
        ((X, STORED.view(torch.int8), "GROUP4_128_F16"), "are torch.int8"),
        ((X[:, :128], STORED, "GROUP4_128_F16"), r"x is torch.float32 \[5, 128\] \(allowed: floats \[..., 256\]\)"),
        ((A, STORED, "GROUP4_128_F16"), "x is torch.int8"),
    ):
        with pytest.raises(UsageError, match=said):
            quantized.stored_gemm(*arguments)
    with pytest.raises(QuantFormatError, match="Q9"):
        quantized.stored_gemm(X, STORED, "Q9")
    with pytest.raises(NonFiniteError, match="x"):
        quantized.stored_gemm(X * float("inf"), STORED, "GROUP4_128_F16")


def test_octavo_without_torch(tmp_path: Any) -> None:
    """The package does not import torch; octavo.torch says what to install."""
    code = (
        "import sys, octavo, octavo.ops; assert 'torch' not in sys.modules\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from octavo.errors import BackendError\n"
        "try: import octavo.torch\n"
        "except BackendError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "torch is not installed (pip install '.[gpu]' in Octavo's folder)" in done.stdout
