"""Products of random numbers to time on a GPU: weights that no cache holds, activations as the backend makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, activation_bytes
from octavo.backends.gpu.ops import BINDERS
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.bench.gpu import copied
from octavo.bench.synthetic import random_matrix
from octavo.formats.spec import BlockFormat
from octavo.graph.node import Node
from octavo.graph.ops import apply

ROWS = 1024
"""Of a matrix, before it repeats them."""
COLD_BYTES = 250e6
"""Of all copies of a matrix: as many as 5 times the L2."""


def matrix(backend: GpuBackend, fmt: BlockFormat, n: int, k: int) -> tuple[QuantWeight, int]:
    """A matrix of n rows, and its bytes as a file has it."""
    tensor = random_matrix("w", fmt, (min(n, ROWS), k), np.random.default_rng(0))
    some: Any = backend.load(tensor)
    parts = {
        name: part.repeat(-(-n // len(part)), *(1,) * (part.ndim - 1))[:n].contiguous()
        for name, part in some.parts.items()
    }
    return replace(some, n=n, parts=parts), tensor.nbytes // min(n, ROWS) * n


def copies(weight: QuantWeight, nbytes: int, most: int = 32) -> list[QuantWeight]:
    """The weight in as many copies as no cache holds, 2 to `most`."""
    count = max(2, min(most, int(COLD_BYTES / nbytes) + 1))
    return [weight, *(copied(weight) for _ in range(count - 1))]


def activations(context: Context, tokens: int, k: int, *, both: bool = False) -> Activation:
    """Random activations, quantized as the backend does it; both: also in the order of `w4a16.hopper_kernel`."""
    device = context.target.device
    raw = torch.empty(activation_bytes(tokens, k, context.target.arch), dtype=torch.uint8, device=device)
    x, out = torch.randn(tokens, k, device=device), Activation(raw, tokens, k, both=both)
    given = Node("input", (), ("tokens", k), "f32", name="x")
    for call in BINDERS["quantize"](context, apply("quantize", given, format="q8_1"), [x], out):
        call()
    return out
