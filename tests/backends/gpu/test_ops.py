"""`octavo.ops` and `octavo bench gemm` with a GPU's kernels: the way from public functions to the backend and back.

Where kernels are interpreted, tensors lie in the host's memory, so that they are on a GPU has to be said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo import ops
from octavo.backends.gpu.device.torch_device import target
from octavo.bench.gemm import measure
from octavo.ops import definition, op_products, place, quantize

RNG = np.random.default_rng(2)
BOTH = pytest.mark.parametrize("m", [1, 20])


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (op_products, quantize):
        monkeypatch.setattr(module, "on_gpu", lambda *given: any(place.is_torch(x) for x in given))


def tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(a).to(target().device) for a in arrays]


@BOTH
def test_int8(m: int) -> None:
    x, w, bias = (RNG.standard_normal(s).astype(np.float32) for s in ((m, 256), (40, 256), (40,)))
    a, scale_a, zero_a = ops.quantize_int8(tensors(x)[0], "token", symmetric=False)
    b, scale_b = ops.quantize_int8(tensors(w)[0], "channel")
    y = ops.int8_gemm(a, b, scale_a, scale_b, zero_a=zero_a, bias=tensors(bias)[0], activation="silu")
    made = [t.cpu().numpy() for t in (a, b, scale_a, scale_b)]
    assert (made[0] == definition.quantize_int8_zero(x, "token")[0]).all()
    expected = definition.int8_gemm(*made, zero_a=zero_a.cpu().numpy(), bias=bias, activation="silu")
    assert y.cpu().numpy() == pytest.approx(expected, rel=1e-5, abs=1e-4)


@BOTH
@pytest.mark.parametrize("group", [None, 128])
def test_w4a8(m: int, group: Any) -> None:
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((m, 256), (40, 256)))
    weight = ops.quantize_w4a8(w, group)
    a, scale_a = ops.quantize_int8(tensors(x)[0], "token")
    y = ops.w4a8_gemm(a, weight.to(target().device), scale_a)
    expected = definition.w4a8_gemm(a.cpu().numpy(), weight, scale_a.cpu().numpy())
    assert y.cpu().numpy() == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("scheme", measure.PRODUCTS)
def test_bench_passes(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    monkeypatch.setattr(measure, "COLD_BYTES", 1 << 14)
    result = measure.bench_gemm(20, 48, 256, scheme, "gpu")
    assert result["passed"]
    short_sums = scheme.startswith("fp8") and target().device != "cpu"  # which the tensor cores of some GPUs keep
    assert result["own_error"] < (5e-4 if short_sums else 1e-5)
    beside = [each["name"].split()[-1] for each in result["libraries"]]
    assert beside[-1:] == ([] if target().device == "cpu" else ["float16"])
