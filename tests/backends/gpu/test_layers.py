"""`octavo.torch` with a GPU's kernels: layers on the device, moved there, compiled; kernels interpreted.

Where kernels are interpreted, tensors lie in the host's memory, so that they are on a GPU has to be said.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from octavo.backends.gpu.device.torch_device import target
from octavo.ops import op_products, place, quantize
from octavo.torch import SCHEMES, QuantLinear, int8_gemm, operators, quantize_, quantize_int8
from octavo.torch.linear import product_of
from tests.sampling import some

WHERE = target().device
BOUND = {
    "int8-w8a8": 0.03, "w4a8": 0.2, "w4a8-g128": 0.15, "fp8": 0.05,
    "w4a16-g128": 0.15, "w4a16-g64": 0.15, "w4a16-g32": 0.15,
    "w4a16": 0.2, "w8a16": 0.03, "fp8-block": 0.05, "mxfp4a16": 0.2, "nvfp4a16": 0.15,
}
EVERY = pytest.mark.parametrize("scheme", SCHEMES)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    for module in (op_products, quantize, operators):
        monkeypatch.setattr(module, "on_gpu", lambda *given: any(place.is_torch(x) for x in given))


def linear(k: int = 256, n: int = 40) -> nn.Linear:
    torch.manual_seed(k)
    return nn.Linear(k, n).to(WHERE)


@EVERY
@pytest.mark.parametrize("dtype", some([torch.float32, torch.bfloat16], 1))
@torch.no_grad()
def test_layers(scheme: str, dtype: torch.dtype) -> None:
    given = linear().to(dtype)
    layer = QuantLinear.from_linear(given, scheme)
    assert all(b.device.type == WHERE for b in layer.buffers())
    for shape in ((256,), (2, 3, 256), (20, 256), (0, 256)):
        x = torch.randn(shape, device=WHERE).to(dtype)
        y, right = layer(x), given(x)
        assert (y.dtype, y.shape, y.device) == (dtype, right.shape, right.device)
        assert float((y - right).float().norm()) <= (BOUND[scheme] + 0.01) * float(right.float().norm())


@pytest.mark.parametrize("scheme", some([name for name in SCHEMES if product_of(SCHEMES[name]) == "stored"], 3))
@torch.no_grad()
def test_floats_by_stored_rows(scheme: str) -> None:
    """Activations become float16 at most."""
    given, x = linear(), torch.randn(5, 256, device=WHERE)
    layer = QuantLinear.from_linear(given, scheme)
    right = x.double() @ layer.dequantize().double().T + given.bias
    assert float((layer(x) - right).norm()) <= 1e-3 * float(right.norm())


@EVERY
@torch.no_grad()
def test_what_was_quantized_on_the_cpu_is_the_same_there(scheme: str) -> None:
    """Weights are the same to the bit, whichever device rounds them."""
    here = QuantLinear.from_linear(linear(), scheme)
    with pytest.MonkeyPatch.context() as patched:
        for module in (op_products, quantize, operators):
            patched.setattr(module, "on_gpu", place.on_gpu)
        there = QuantLinear.from_linear(linear().cpu(), scheme).to(WHERE)
    for name, buffer in here.named_buffers():
        other = there.get_buffer(name)
        assert buffer.dtype == other.dtype
        assert torch.equal(buffer.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


@pytest.mark.slow  # by default layers are compiled in tests/torch_api, with the CPU's kernels
@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_compiled(scheme: str) -> None:
    model = quantize_(nn.Sequential(linear(256, 128), nn.GELU(), linear(128, 24)), scheme)
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    for rows in (2, 5):
        x = torch.randn(rows, 256, device=WHERE)
        assert torch.equal(compiled(x), model(x))


def test_operators() -> None:
    x, w, bias = (torch.randn(s, device=WHERE) for s in ((5, 256), (24, 256), (24,)))
    (a, scale_a), (b, scale_b) = quantize_int8(x, "token"), quantize_int8(w, "channel")
    torch.library.opcheck(quantize_int8, (x, "token"))
    torch.library.opcheck(int8_gemm, (a, b, scale_a, scale_b, None, bias), {"activation": "relu", "out_dtype": "bf16"})
