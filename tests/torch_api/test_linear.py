"""Layers with quantized weights: results, shapes, types, what is stored, and models whose layers are replaced."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

from octavo import ops
from octavo.errors import NonFiniteError, UsageError
from octavo.torch import SCHEMES, QuantLinear, quantize_
from tests.sampling import some

BOUND = {
    "int8-w8a8": 0.03, "w4a8": 0.2, "w4a8-g128": 0.15, "fp8": 0.05,
    "w4a16-g128": 0.15, "w4a16-g64": 0.15, "w4a16-g32": 0.15,
    "w4a16": 0.2, "w8a16": 0.03, "fp8-block": 0.05, "mxfp4a16": 0.2, "nvfp4a16": 0.15,
}
EVERY = pytest.mark.parametrize("scheme", SCHEMES)


def linear(k: int = 256, n: int = 40, bias: bool = True) -> nn.Linear:
    torch.manual_seed(k + n)
    return nn.Linear(k, n, bias)


def error(y: torch.Tensor, right: torch.Tensor) -> float:
    return float((y.double() - right.double()).norm() / right.double().norm())


@pytest.mark.few(4)
@EVERY
@pytest.mark.parametrize("shape", some([[256], [1, 256], [9, 256], [2, 3, 256], [0, 256], [2, 0, 256]], 3), ids=str)
@torch.no_grad()
def test_any_leading_dimensions(scheme: str, shape: list[int]) -> None:
    given, x = linear(), torch.randn(shape)
    y = QuantLinear.from_linear(given, scheme)(x)
    assert y.shape == given(x).shape
    if y.numel():
        assert error(y, given(x)) < BOUND[scheme]


@pytest.mark.few(4)
@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@torch.no_grad()
def test_any_float_type(scheme: str, dtype: torch.dtype) -> None:
    given, x = linear().to(dtype), torch.randn(6, 256).to(dtype)
    y = QuantLinear.from_linear(given, scheme)(x)
    assert y.dtype == dtype
    assert error(y, given(x)) < BOUND[scheme] + 0.01
    strided = torch.randn(256, 6).to(dtype).t()
    assert error(QuantLinear.from_linear(given, scheme)(strided), given(strided)) < BOUND[scheme] + 0.01


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_it_is_the_product_and_nothing_more(bias: bool) -> None:
    given, x = linear(bias=bias), torch.randn(7, 256)
    codes, scale = ops.quantize_int8(x, "token")
    weight, weight_scale = ops.quantize_int8(given.weight, "channel")
    y = ops.int8_gemm(codes, weight, scale, weight_scale, bias=given.bias)
    assert torch.equal(QuantLinear.from_linear(given, "int8-w8a8")(x), y)


@pytest.mark.parametrize(("scheme", "bound"), [("int8-w8a8", 0.01), ("w4a8", 0.01), ("w4a8-g128", 0.01), ("fp8", 0.04)])
@torch.no_grad()
def test_next_to_the_product_of_floats(scheme: str, bound: float) -> None:
    """Activations that are rounded by token leave as much as the documentation says."""
    given, x = linear(), torch.randn(33, 256)
    layer = QuantLinear.from_linear(given, scheme)
    assert error(layer(x), x @ layer.dequantize().T + given.bias) < bound


@pytest.mark.few(4)
@EVERY
@torch.no_grad()
def test_state_dict(scheme: str) -> None:
    given, x = QuantLinear.from_linear(linear(), scheme), torch.randn(4, 256)
    file = io.BytesIO()
    torch.save(given.state_dict(), file)
    file.seek(0)
    for assign in (False, True):
        other = QuantLinear(256, 40, scheme=scheme, device="meta" if assign else None)
        file.seek(0)
        assert other.load_state_dict(torch.load(file, weights_only=True), assign=assign)
        assert torch.equal(other(x), given(x))
        assert {n: b.dtype for n, b in other.named_buffers()} == {n: b.dtype for n, b in given.named_buffers()}
    assert not list(given.parameters())
    assert torch.equal(copy.deepcopy(given)(x), given(x))


def test_states_that_do_not_fit() -> None:
    int8 = QuantLinear.from_linear(linear(), "int8-w8a8")
    for scheme, said in (
        ("fp8", "weight is torch.int8 .allowed: torch.float8_e4m3fn"),
        ("w4a8", "weight is torch.int8 .allowed: torch.uint8"),
    ):
        with pytest.raises(RuntimeError, match=said):
            QuantLinear(256, 40, scheme=scheme).load_state_dict(int8.state_dict())
    with pytest.raises(RuntimeError, match=r"weight is torch\.float32"):
        int8.load_state_dict(linear().state_dict(), strict=False)
    with pytest.raises(RuntimeError, match="group_scale"):
        QuantLinear(256, 40, scheme="w4a8-g128").load_state_dict(QuantLinear.from_linear(linear(), "w4a8").state_dict())
    for scheme, name, value, said in (
        ("int8-w8a8", "weight_scale", float("nan"), "NaN or Inf"),
        ("w4a8", "weight_scale", float("inf"), "NaN or Inf"),
        ("w4a8-g128", "group_scale", 1000.0, "more than 8 bits"),
    ):
        state = QuantLinear.from_linear(linear(), scheme).state_dict()
        state[name] = torch.full_like(state[name], value)
        with pytest.raises(RuntimeError, match=said):
            QuantLinear(256, 40, scheme=scheme).load_state_dict(state)


@EVERY
@torch.no_grad()
def test_casts_leave_what_is_stored(scheme: str) -> None:
    given, x = QuantLinear.from_linear(linear(), scheme), torch.randn(3, 256)
    y, types = given(x), [b.dtype for b in given.buffers()]
    for cast in (given.half(), given.double(), given.to(torch.bfloat16), given.to("cpu", torch.float16)):
        assert [b.dtype for b in cast.buffers()] == types
    assert torch.equal(given(x), y)
    moved = given.to("meta")
    assert all(b.is_meta for b in moved.buffers())
    assert [b.dtype for b in moved.buffers()] == types
    assert moved(x.to("meta")).shape == (3, 40)


@pytest.mark.parametrize("scheme", some(SCHEMES, 2))
@pytest.mark.parametrize("backend", some(["eager", "aot_eager"], 1))
@torch.no_grad()
def test_compiled(scheme: str, backend: str) -> None:
    model = nn.Sequential(linear(256, 128), nn.GELU(), linear(128, 24))
    quantize_(model, scheme)
    compiled: Any = torch.compile(model, fullgraph=True, backend=backend)
    for shape in ((2, 3, 256), (4, 3, 256), (4, 256)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x), model(x))


@torch.no_grad()
def test_exported() -> None:
    model, x = quantize_(nn.Sequential(linear(256, 128), nn.ReLU(), linear(128, 24)), "w4a8-g128"), torch.randn(4, 256)
    rows = {0: torch.export.Dim("rows", min=2)}
    exported = torch.export.export(model, (x,), dynamic_shapes=(rows,)).module()
    for rows_ in (4, 9):
        y = torch.randn(rows_, 256)
        assert torch.equal(exported(y), model(y))


def test_no_gradients() -> None:
    layer = QuantLinear.from_linear(linear())
    y = layer(torch.randn(2, 256, requires_grad=True))
    with pytest.raises(UsageError, match="backward through a quantized product"):
        y.sum().backward()


def test_what_a_layer_refuses() -> None:
    with pytest.raises(UsageError, match=r"scheme 'int4' \(allowed: int8-w8a8, w4a8, .*, nvfp4a16\)"):
        QuantLinear(128, 8, scheme="int4")
    with pytest.raises(UsageError, match=r"192 inputs and 8 outputs as w4a8 .allowed: inputs from 128 on, multiples"):
        QuantLinear(192, 8, scheme="w4a8")
    with pytest.raises(UsageError, match="0 inputs"):
        QuantLinear(0, 8)
    layer = QuantLinear.from_linear(linear())
    with pytest.raises(UsageError, match=r"x has the shape \[2, 3, 128\] \(allowed: \[\.\.\., 256\]\)"):
        layer(torch.zeros(2, 3, 128))
    with pytest.raises(UsageError, match=r"x is torch\.int64"):
        layer(torch.zeros(2, 256, dtype=torch.int64))
    with pytest.raises(UsageError, match="on meta"):
        QuantLinear.from_linear(nn.Linear(8, 8, device="meta"))
    broken = linear()
    with torch.no_grad():
        broken.weight[3, 5] = float("nan")
    for scheme in SCHEMES:
        with pytest.raises(NonFiniteError, match="NaN or Inf"):
            QuantLinear.from_linear(broken, scheme)


def test_what_it_says() -> None:
    assert repr(QuantLinear(128, 8, False, "w4a8")) == (
        "QuantLinear(in_features=128, out_features=8, bias=False, scheme='w4a8')"
    )
