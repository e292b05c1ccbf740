"""Rows of groups on the GPU: the layout there and back, and products by each kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu.device.memory import weight_bytes
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch import device_values
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.launch import product
from octavo.backends.gpu.matmul.w4a16.weight_only import dequantize_stored, matmul_stored
from octavo.backends.gpu.ops.quantize import quantized
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import padded
from octavo.backends.gpu.weights.load import load
from octavo.backends.gpu.weights.pack import pack, unpack
from octavo.formats import Planes, QTensor, dequantize, group_format
from octavo.formats import pack as planes_packed
from octavo.formats.float8 import float8_format
from octavo.formats.spec import BlockFormat
from tests.formats.groups import random_planes, random_tensor
from tests.sampling import slow

COMMON = [group_format(4, 128), group_format(4, 128, "F16", "zero")]
RARE = [
    group_format(8, 128, "F16", "zero"), group_format(3, 64, "F32", "minimum"), group_format(2, 128, "F16", "zero"),
    group_format(5, 32, "BF16"), group_format(4, 128, "F32"), group_format(8, 64, "F16", "minimum"),
    group_format(4, 32, "F16", "zero"), group_format(8, 32, "F32", "zero"), group_format(6, 64, "BF16", "zero"),
    group_format(4, 16), group_format(3, 16, "F16", "zero"),
]


@pytest.mark.parametrize("fmt", [*COMMON, *RARE], ids=lambda f: f.name)
def test_there_and_back(fmt: BlockFormat) -> None:
    planes = random_planes(fmt, 3, 384)
    back = unpack(pack(planes, fmt))
    repeat = fmt.group // (384 // back.d.shape[1])  # type: ignore[union-attr]
    assert (back.q == planes.q).all()
    for part in ("d", "dmin", "m"):
        before, after = getattr(planes, part), getattr(back, part)
        assert (before is None and after is None) or (np.repeat(before, repeat, axis=1) == after).all(), part


def test_memory_is_hardly_more_than_the_file() -> None:
    for bits in (3, 4, 5, 6, 8):
        for below in ("offset", "zero", "minimum"):
            fmt = group_format(bits, 128, "F16", below)  # type: ignore[arg-type]
            layout = pack(random_planes(fmt, 1, 1024), fmt).layout
            assert layout.row_bytes(1024) <= 1.1 * fmt.row_bytes(1024), fmt.name


@pytest.mark.parametrize("tokens", [1, slow(2), slow(5), 9, slow(40)])
@pytest.mark.parametrize("fmt", [*COMMON, *map(slow, RARE)], ids=lambda f: f.name)
def test_products(fmt: BlockFormat, tokens: int) -> None:
    """Every value of a token is the same code, so that nothing is rounded but weights for many tokens."""
    c, k = Context(target()), 384
    tensor = random_tensor(fmt, 5, k)
    w: Any = load(tensor, c.target.device)
    size = device_values.activation_bytes(tokens, k, c.target.arch)
    memory = torch.zeros(size, dtype=torch.uint8, device=c.target.device)
    x = device_values.Activation(memory, tokens, k)
    codes = torch.arange(1, tokens + 1, dtype=torch.int8)
    if tokens > 32:
        x.halves.view(tokens, k)[:] = codes[:, None]
    else:
        x.q8_1.codes.view(tokens, k)[:] = codes[:, None]
        x.q8_1.scale.fill_(1.0)
        x.q8_1.sums.view(-1, x.q8_1.stride)[:, :tokens] = 32.0 * codes
        x.q8_1.sums16.view(-1, x.q8_1.stride)[:, :tokens] = 16.0 * codes
    y = torch.empty(tokens, 5, dtype=torch.float32, device=c.target.device)
    for call in product(c, w, x, y, ()):
        call()
    right = codes.numpy()[:, None] * dequantize(tensor).astype(np.float64).sum(axis=1)
    allowed = 1e-3 if tokens > 32 else 2e-5
    np.testing.assert_allclose(y.cpu().numpy(), right, rtol=allowed, atol=allowed * np.abs(right).max())


@pytest.mark.parametrize("fmt", [COMMON[1], *map(slow, RARE)], ids=lambda f: f.name)
def test_weights_alone(fmt: BlockFormat) -> None:
    tensor = random_tensor(fmt, 5, 384)
    np.testing.assert_allclose(dequantize_stored(tensor).cpu().numpy(), dequantize(tensor), rtol=1e-6, atol=2e-6)
    x = torch.randn(2, 384, generator=torch.Generator().manual_seed(0)).half().float()
    want = x.double() @ torch.from_numpy(dequantize(tensor)).double().T
    y = matmul_stored(x.to(target().device), tensor).cpu().numpy()
    np.testing.assert_allclose(y, want.numpy(), rtol=1e-3, atol=1e-3)


def float8_tensor(group: int, n: int, k: int) -> QTensor:
    fmt, rng = float8_format(group), np.random.default_rng(5)
    codes = rng.integers(0, 127, (n, k), dtype=np.uint8) | rng.integers(0, 2, (n, k), dtype=np.uint8) << 7
    scales = 2.0 ** rng.integers(-12, -4, (n, k // group)) if group == 32 else rng.uniform(1e-5, 0.01, (n, k // group))
    return QTensor(fmt, (n, k), planes_packed(Planes(codes, d=scales.astype(np.float32)), fmt))


def float8_product(c: Context, tensor: QTensor, x: np.ndarray, residual: torch.Tensor | None = None) -> np.ndarray:
    """What is computed of x, which is rounded to float16, and a residual."""
    w, (tokens, k) = load(tensor, c.target.device), x.shape
    assert isinstance(w, QuantWeight)
    assert w.layout.float8
    size = device_values.half_activation_bytes(tokens, k)
    memory = torch.zeros(size, dtype=torch.uint8, device=c.target.device)
    given = device_values.float_activation(memory, tokens, k, c.target.arch, c.deterministic)
    y = torch.full((tokens, w.n), float("nan"), device=c.target.device)
    calls = quantized(c, Source(matrix(torch.from_numpy(x).to(c.target.device))), given)
    for call in [*calls, *product(c, w, given, y, () if residual is None else (residual,))]:
        call()
    return y.cpu().numpy()


@pytest.mark.parametrize("tokens", [1, 3, 7, 16, slow(33), slow(130)])
@pytest.mark.parametrize(("group", "k"), [(128, 256), (32, 288)])
def test_blocks_of_fp8(group: int, k: int, tokens: int) -> None:
    """8-bit numbers times scales lie in memory as they are."""
    tensor, x = float8_tensor(group, 37, k), np.random.default_rng(6).standard_normal((tokens, k)).astype(np.float32)
    rounded = x if dispatch.planar(tokens, target().arch) else x.astype(np.float16)
    want = rounded.astype(np.float64) @ dequantize(tensor).T.astype(np.float64)
    allowed = 2e-5 if dispatch.planar(tokens, target().arch) else 2e-3
    np.testing.assert_allclose(
        float8_product(Context(target()), tensor, x), want, rtol=allowed, atol=allowed * np.abs(want).max()
    )
    assert weight_bytes(tensor) <= 1.13 * tensor.size * padded(k) / k


def test_fp8_is_the_same_to_the_bit_whatever_else_is_in_the_step() -> None:
    tensor, x = float8_tensor(128, 37, 256), np.random.default_rng(6).standard_normal((19, 256)).astype(np.float32)
    c = Context(target(), deterministic=True)
    assert (float8_product(c, tensor, x)[7] == float8_product(c, tensor, x[7:8])[0]).all()


@pytest.mark.parametrize("tokens", [3, 6, 18])
def test_fp8_and_a_residual(tokens: int) -> None:
    tensor, x = float8_tensor(128, 37, 256), np.random.default_rng(6).standard_normal((tokens, 256)).astype(np.float32)
    before, c = torch.randn(tokens, 37), Context(target())
    want = float8_product(c, tensor, x) + before.numpy()
    got = float8_product(c, tensor, x, before.to(c.target.device))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_fp8_that_is_no_number_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    tensor, x = float8_tensor(128, 37, 256), np.ones((2, 256), np.float32)
    tensor.data[5, 4 + 17] = 0x7F
    y = float8_product(Context(target()), tensor, x)
    assert np.isnan(y[:, 5]).all()
    assert np.isfinite(np.delete(y, 5, axis=1)).all()
    assert "holds NaN or Inf" in caplog.text
