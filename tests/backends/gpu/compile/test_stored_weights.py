"""`octavo.ops.matmul` and `dequantize` of stored tensors with a GPU's kernels: every format, and how long weights stay.

Where kernels are interpreted, tensors lie in the host's memory, so that they are on a GPU has to be said.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from octavo import ops
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.matmul.w4a16 import weight_only as gpu
from octavo.bench.gemm import measure
from octavo.errors import QuantFormatError, UsageError
from octavo.formats import FORMATS, QTensor, by_name, dequantize, quantize_reference
from octavo.ops import weight_only
from tests.sampling import some

NAMES = [f.name for f in FORMATS if f.encode]
RNG = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_only, "on_gpu", lambda *given: True)
    monkeypatch.setattr(weight_only, "_on_host", lambda device: False)


def stored(name: str, *shape: int) -> QTensor:
    return quantize_reference(RNG.standard_normal(shape).astype(np.float32), by_name(name))


def activations(rows: int, k: int) -> torch.Tensor:
    return torch.from_numpy(RNG.standard_normal((rows, k)).astype(np.float16)).to(target().device)


@pytest.mark.parametrize("name", some(NAMES, 7))
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_products(name: str, tokens: int) -> None:
    weight, x = stored(name, 21, 512), activations(tokens, 512)
    y = ops.matmul(x, weight)
    assert (y.dtype, tuple(y.shape), y.device.type) == (torch.float32, (tokens, 21), target().device)
    right = x.cpu().numpy().astype(np.float64) @ dequantize(weight).T.astype(np.float64)
    assert np.linalg.norm(y.cpu().numpy() - right) <= 1e-3 * np.linalg.norm(right)


@pytest.mark.parametrize("name", some(NAMES, 6))
def test_values(name: str) -> None:
    for shape in ((7, 512), (2, 3, 256), (256,)):
        weight = stored(name, *shape)
        values = ops.dequantize(weight, target().device)
        assert (tuple(values.shape), values.device.type) == (shape, target().device)
        assert values.cpu().numpy() == pytest.approx(dequantize(weight), rel=1e-6, abs=1e-6)


def test_rows_that_are_no_whole_tile() -> None:
    weight, x = stored("Q8_0", 5, 160), activations(3, 160)
    assert ops.dequantize(weight, target().device).cpu().numpy() == pytest.approx(dequantize(weight))
    right = x.cpu().numpy().astype(np.float32) @ dequantize(weight).T
    for given in (x, x.float(), x.t().contiguous().t(), torch.cat([x, x], 1)[:, 160:]):
        assert ops.matmul(given, weight).cpu().numpy() == pytest.approx(right, abs=1e-4)
    assert ops.matmul(x.bfloat16(), weight).cpu().numpy() == pytest.approx(right, abs=0.15)
    for n, k in ((0, 32), (5, 0)):
        nothing = QTensor(weight.format, (n, k), np.zeros((n, k // 32 * 34), np.uint8))
        y = ops.matmul(activations(2, k), nothing)
        assert (tuple(y.shape), int(y.count_nonzero())) == ((2, n), 0)
        assert tuple(ops.dequantize(nothing, target().device).shape) == (n, k)


def test_a_weight_is_sent_once_and_kept_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    load = gpu.load

    def counted(tensor: QTensor, device: str) -> Any:
        sent.append(tensor.format.name)
        return load(tensor, device)

    monkeypatch.setattr(gpu, "load", counted)
    gc.collect()
    before = len(gpu._loaded)
    weight, other, x = stored("Q4_0", 4, 128), stored("F16", 4, 128), activations(2, 128)
    for _ in range(2):
        ops.matmul(x, weight)
        ops.matmul(x, other)
    assert sent == ["Q4_0", "F16"]
    assert len(gpu._loaded) == before + 2
    del weight, other
    gc.collect()
    assert len(gpu._loaded) == before


def test_what_does_not_fit_is_said() -> None:
    weight, x = stored("Q8_0", 4, 64), activations(2, 96)
    with pytest.raises(UsageError, match=r"float16 \[2, 96\] \(allowed: floats \[tokens, 64\]\)"):
        ops.matmul(x, weight)
    with pytest.raises(UsageError, match=r"int32 \[2, 64\]"):
        ops.matmul(x[:, :64].int(), weight)
    with pytest.raises(UsageError, match="two dimensions"):
        ops.matmul(x, stored("Q8_0", 2, 4, 96))
    for name in ("Q8_0", "F16"):
        with pytest.raises(UsageError, match="x is on meta, the weight on"):
            ops.matmul(torch.zeros((2, 64), device="meta"), stored(name, 4, 64))
    with pytest.raises(QuantFormatError, match="not a multiple of Q8_0 blocks"):
        QTensor(weight.format, (4, 60), weight.data)


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("name", some(["q8_0", "q4_k", "iq4_nl"], 1))
def test_bench(name: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    monkeypatch.setattr(measure, "COLD_BYTES", 1 << 14)
    result = measure.bench_gemm(tokens, 48, 256, name, "gpu")
    assert result["passed"]
    both = name == "q4_k" and tokens > 1  # scales and minima are rounded, which partly cancel
    assert result["own_error"] < (1e-3 if both else 5e-4)  # scales of few tokens, and weights of many, are in float16
    beside = [each["name"].split()[-1] for each in result["libraries"]]
    assert beside[-1:] == ([] if target().device == "cpu" else ["float16"])
