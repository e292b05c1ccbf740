"""Products of quantized weights with float activations, held to their definition; kernels interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.w4a16.weight_only import matmul
from octavo.backends.gpu.weights.load import load
from octavo.bench.cases import WEIGHTS
from octavo.errors import UsageError
from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from tests.sampling import some

QUANTIZED = [name for name in WEIGHTS if not by_name(name).is_float and name != "NVFP4"]


def weights(name: str, n: int, k: int) -> QTensor:
    values = np.random.default_rng(n).standard_normal((n, k)).astype(np.float32)
    return quantize_reference(values, by_name(name))


def error(name: str, tokens: int, n: int, k: int) -> float:
    """The normalised mean squared error of a product."""
    c = Context(target())
    tensor = weights(name, n, k)
    x = np.random.default_rng(tokens).standard_normal((tokens, k)).astype(np.float16)
    w: Any = load(tensor, c.target.device)
    y = matmul(c, torch.from_numpy(x).to(c.target.device), w).cpu().numpy()
    right = x.astype(np.float64) @ dequantize(tensor).astype(np.float64).T
    return float(np.square(y - right).sum() / np.square(right).sum())


@pytest.mark.parametrize("name", some(QUANTIZED, 6))
def test_a_few_tokens(name: str) -> None:
    assert error(name, 3, 50, 512) < 1e-11


@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 1, 288), (8, 130, 1056), (9, 50, 512), (40, 7, 96)])
def test_shapes(tokens: int, n: int, k: int) -> None:
    """Rows, K and tokens that do not fill a tile; from 9 tokens on weights are rounded to float16."""
    assert error("Q4_0", tokens, n, k) < (1e-11 if tokens <= 8 else 1e-6)


def test_no_tokens_and_wrong_ones() -> None:
    c = Context(target())
    w: Any = load(weights("Q8_0", 4, 64), c.target.device)
    made = {"device": c.target.device}
    assert matmul(c, torch.zeros((0, 64), **made), w).shape == (0, 4)
    with pytest.raises(UsageError, match=r"\[1, 96\] \(allowed: floats \[tokens, 64\]\)"):
        matmul(c, torch.zeros((1, 96), **made), w)
    with pytest.raises(UsageError, match="int32"):
        matmul(c, torch.zeros((1, 64), dtype=torch.int32, **made), w)
