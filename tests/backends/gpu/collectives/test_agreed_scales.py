"""Rows whose values several ranks have: codes under the scale that all agree on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.device_values import TokenCodes
from octavo.graph.node import DType, Node
from octavo.graph.ops import apply


def codes(backend: GpuBackend, kind: DType, x: torch.Tensor, *largest: torch.Tensor) -> TokenCodes:
    node = Node("input", (), x.shape, "f32", name="x")
    most = [Node("input", (), (len(x), 1), "f32", name="largest") for _ in largest]
    out: TokenCodes = backend.view(backend.allocate(backend.nbytes(x.shape, kind)), 0, tuple(x.shape), kind)
    for call in backend.launches(backend._context, apply("quantize", node, *most, format=kind), [x, *largest], out):
        call()
    return out


@pytest.mark.parametrize("kind", ["int8_token", "fp8_token"])
def test_halves_have_the_codes_of_the_row(kind: DType) -> None:
    backend = GpuBackend()
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32))
    x[0, 200], x[1, 3] = 9.0, -9.0
    whole, largest = codes(backend, kind, x), x.abs().amax(1, keepdim=True)
    for columns in (slice(0, 128), slice(128, 256)):
        half = codes(backend, kind, x[:, columns].contiguous(), largest)
        assert torch.equal(half.scales[:3], whole.scales[:3])
        assert torch.equal(half.bytes, whole.bytes[:, columns])
