"""Products of one token whose codes and scales are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch import device_values
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.weights.load import load
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, dequantize


def check_product_of_one_token(multiply: Callable[..., Any], name: str, n: int, k: int) -> None:
    """`multiply(context, weight, x, y, terms)` of n rows of k values and a term: all that is not rounded is exact. Rows
    have factors where a format's have."""
    c, rng = Context(target()), np.random.default_rng(n)
    if c.target.device == "cpu" and n > 100:
        n = 100
    tensor = random_matrix("w", by_name(name), (n, k), rng)
    w: Any = load(tensor, c.target.device)
    factors = np.ones(n)
    if name == "NVFP4":
        factors = rng.choice([0.5, 3.0], n)
        w.parts["factors"] = torch.from_numpy(factors.astype(np.float32))[:, None].to(c.target.device)
    memory = torch.zeros(device_values.activation_bytes(1, k, c.target.arch), dtype=torch.uint8, device=c.target.device)
    x, codes = device_values.Activation(memory, 1, k).q8_1, rng.integers(-127, 128, (k // 16, 16), np.int8)
    scale = np.exp2(rng.integers(-2, 3, k // 32)).astype(np.float32)
    halves = codes.sum(axis=1, dtype=np.float32) * scale.repeat(2)
    for place, given in (
        (x.codes, codes.ravel()), (x.scale, scale), (x.sums, halves.reshape(-1, 2).sum(axis=1)), (x.sums16, halves),
    ):
        place.copy_(torch.from_numpy(given))
    y, term = torch.full((2, 1, n), torch.nan, device=c.target.device)
    term.fill_(3.0)
    multiply(c, w, x, y, (term,))()
    floats = (codes.reshape(-1, 32) * scale[:, None]).ravel().astype(np.float64)
    exact = dequantize(tensor).astype(np.float64) @ floats * factors + 3
    np.testing.assert_allclose(y.cpu().numpy()[0], exact, rtol=1e-5, atol=2e-6 * np.abs(exact).max())
