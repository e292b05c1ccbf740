"""Schemes of weights alone: values are a checkpoint's, products those of floats, and packed copies are let go."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from torch import nn

from octavo.errors import NonFiniteError, UsageError
from octavo.formats.activation import activation
from octavo.huggingface.scheme_weight import nearest, values_of
from octavo.huggingface.schemes import checkpoint_scheme
from octavo.torch import QuantLinear, operators, quantize_
from tests.sampling import some

SCHEMES = ("w4a16-g128", "w4a16", "w8a16", "fp8-block", "mxfp4a16", "nvfp4a16")
EVERY = pytest.mark.parametrize("scheme", SCHEMES)


def linear(k: int = 384, n: int = 50) -> nn.Linear:
    torch.manual_seed(k)
    return nn.Linear(k, n)


@pytest.mark.few(5)
@EVERY
@pytest.mark.parametrize("rows", some([1, 3, 8, 21, 40], 2))
@torch.no_grad()
def test_products(scheme: str, rows: int) -> None:
    """Next to the float product of the dequantized weight: 1% where x becomes q8_1, else float32's own error."""
    given, x = linear(), torch.randn(rows, 384)
    layer = QuantLinear.from_linear(given, scheme)
    kind = checkpoint_scheme(scheme)
    weight = layer.dequantize()
    assert torch.equal(weight, torch.from_numpy(values_of(kind, nearest(kind, given.weight.numpy()))))
    exact = x.double() @ weight.double().T + given.bias.double()
    bound = 1e-6 if scheme == "fp8-block" else 0.01
    assert (layer(x) - exact).norm() < bound * exact.norm()
    quantize = activation("f32" if scheme == "fp8-block" else "q8_1").quantize
    assert quantize is not None
    rounded = torch.from_numpy(quantize(x.numpy()).dequantize()).double() @ weight.double().T + given.bias.double()
    assert (layer(x) - rounded).norm() < 1e-3 * exact.norm()  # a value halfway between codes may become either


@pytest.mark.parametrize(
    ("scheme", "sizes"), [("w8a16", (32, 96, 192)), ("mxfp4a16", (32, 96)), ("nvfp4a16", (64, 192))]
)
@torch.no_grad()
def test_sizes(scheme: str, sizes: tuple[int, ...]) -> None:
    for k in sizes:
        given, x = linear(k, 7), torch.randn(4, k)
        layer = QuantLinear.from_linear(given, scheme)
        assert (layer(x) - given(x)).norm() < 0.25 * given(x).norm()
    with pytest.raises(UsageError, match=rf"{scheme} of layers whose inputs are not multiples of .*: 1 \(80\)"):
        quantize_(nn.Sequential(linear(sizes[0], 80), linear(80, 8)), scheme)


@torch.no_grad()
def test_what_is_packed_follows_the_values_and_ends_with_them() -> None:
    gc.collect()
    kept, x = len(operators._packed), torch.randn(3, 384)
    layer, other = (QuantLinear.from_linear(linear(n=n), "w4a16-g128") for n in (50, 51))
    other = QuantLinear.from_linear(nn.Linear(384, 50), "w4a16-g128")
    first = layer(x)
    assert torch.equal(layer(x), first)
    assert len(operators._packed) == kept + 1
    twin = copy.deepcopy(layer)
    layer.load_state_dict(other.state_dict())  # in place
    assert torch.equal(layer(x), other(x))
    assert torch.equal(twin(x), first)
    layer.weight.copy_(twin.weight)
    layer.bias = twin.bias
    assert torch.equal(layer(x), first)
    layer.weight = other.weight.clone()  # another tensor
    layer.bias = other.bias
    assert torch.equal(layer(x), other(x))
    del layer, other, twin
    gc.collect()
    assert len(operators._packed) == kept


@pytest.mark.few(2)
@EVERY
def test_whole_modules_are_saved_and_made_in_inference_mode(scheme: str) -> None:
    with torch.inference_mode():
        layer, x = QuantLinear.from_linear(linear(), scheme), torch.randn(2, 384)
        right = layer(x)
        assert not any(buffer.is_inference() for buffer in layer.buffers())
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    with torch.inference_mode():
        assert torch.equal(torch.load(file, weights_only=False)(x), right)
    assert torch.equal(layer(x.clone()), right)


@EVERY
def test_scales_that_are_none(scheme: str) -> None:
    layer = QuantLinear.from_linear(linear(), scheme)
    state = layer.state_dict()
    if scheme == "nvfp4a16":
        state["weight_scale"] = torch.tensor(float("nan"))
    elif scheme == "mxfp4a16":  # whose scales are all powers of two, and finite but for one byte
        return
    else:
        state["weight"] = torch.full_like(state["weight"], 0xFF)
    with pytest.raises(RuntimeError, match="NaN or Inf"):
        QuantLinear(384, 50, scheme=scheme).load_state_dict(state)


@torch.no_grad()
def test_numbers_that_are_none() -> None:
    layer, x = QuantLinear.from_linear(linear(), "w4a16"), torch.randn(2, 384)
    x[1, 7] = float("nan")
    with pytest.raises(NonFiniteError, match="x"):
        layer(x)
