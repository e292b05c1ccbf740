"""Products of weights in layouts that no op case has: scales that float16 does not hold, in groups of 64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import values
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.device import target
from octavo.backends.gpu.load import load
from octavo.backends.gpu.products import product
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, dequantize
from tests.sampling import slow

N, K = 5, 256


@pytest.mark.parametrize("tokens", [slow(1), slow(5), 9])
def test_float_scales_of_groups_of_64(tokens: int) -> None:
    """By each kernel of few tokens; every value of a token is the same code, so that nothing is rounded."""
    c, rng = Context(target()), np.random.default_rng(tokens)
    tensor = random_matrix("w", by_name("Q8_K"), (N, K), rng)
    w: Any = load(tensor, c.target.device)
    assert (w.layout.scale, w.layout.group) == ("f32", 64)
    memory = torch.zeros(values.activation_bytes(tokens, K, c.target.arch), dtype=torch.uint8, device=c.target.device)
    x = values.Activation(memory, tokens, K)
    codes = torch.arange(1, tokens + 1, dtype=torch.int8)
    x.q8_1.codes.view(tokens, K)[:] = codes[:, None]
    x.q8_1.scale.fill_(1.0)
    y = torch.empty(tokens, N, dtype=torch.float32, device=c.target.device)
    for call in product(c, w, x, y, ()):
        call()
    right = codes.numpy()[:, None] * dequantize(tensor).astype(np.float64).sum(axis=1)
    np.testing.assert_allclose(y.cpu().numpy(), right, rtol=1e-4, atol=1e-5)
