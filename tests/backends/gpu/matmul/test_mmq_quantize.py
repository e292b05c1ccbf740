"""Activation quantizers: bit for bit what their definitions in NumPy say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton

from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import TokenCodes, token_bytes
from octavo.backends.gpu.matmul.mmq.quantize import MmqLayout, mmq_reference, quantize_mmq_q8_1
from octavo.backends.gpu.matmul.w8a8.row_scales import quantize_tokens
from octavo.errors import UsageError
from octavo.formats.activation import activation
from tests.sampling import slow

LAYOUTS: tuple[MmqLayout, ...] = ("D4", "DS4", "D2S6")


def on(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).to(target().device)


def drawn(*shape: int) -> np.ndarray:
    """Numbers of very different sizes, some rows of zeros among them."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, (*shape[:-1], 1))
    x[..., 1, : shape[-1] // 2] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 3, 128), (2, 3, 2, 200), slow(((1, 2, 5, 512),))])
def test_mmq(layout: MmqLayout, shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    found = quantize_mmq_q8_1(on(x), layout).cpu().numpy()
    np.testing.assert_array_equal(found, mmq_reference(x, layout, -(-shape[3] // 512) * 512))


def block_of_llama_cpp(x: np.ndarray, layout: MmqLayout) -> bytes:
    """A block of 128 values as llama.cpp's quantize_mmq_q8_1 computes it, a thread of four values after the other."""
    share, sums = (64, 16) if layout == "D2S6" else (32, 32)
    threads = x.reshape(32, 4)
    each = [(t[0] + t[1]) + (t[2] + t[3]) for t in threads]
    head, codes = np.zeros(16, np.uint8), b""
    for i in range(32):
        first = i * 4 // share * share // 4
        amax = max(abs(value) for t in threads[first : first + share // 4] for value in t)
        d_inv = np.float32(127) / amax
        scaled = [value * d_inv for value in threads[i]]
        codes += bytes(int(math.copysign(math.floor(abs(float(s)) + 0.5), s)) & 0xFF for s in scaled)
        added = each[i * 4 // sums * sums // 4 :][: sums // 4]
        while len(added) > 1:  # a thread's with its neighbour's, and so on
            added = [a + b for a, b in zip(added[::2], added[1::2], strict=True)]
        d = np.float32(1) / d_inv
        at = i * 4 // share
        if layout == "D4":
            head.view(np.float32)[at] = d
        elif layout == "DS4":
            head.view(np.float16)[2 * at : 2 * at + 2] = d, added[0]
        else:
            head.view(np.float16)[at] = d
            if i * 4 < 96:
                head.view(np.float16)[2 + i * 4 // 16] = added[0]
    return head.tobytes() + codes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mmq_is_llama_cpps_bit_for_bit(layout: MmqLayout) -> None:
    x = np.random.default_rng(4).standard_normal((1, 1, 24, 128)).astype(np.float32)
    expected = b"".join(block_of_llama_cpp(row, layout) for row in x[0, 0])
    assert mmq_reference(x, layout, 128).tobytes() == expected
    assert quantize_mmq_q8_1(on(x), layout, 128).cpu().numpy().tobytes() == expected
    heads = np.frombuffer(expected, np.uint8).reshape(24, 144)[:, :16].copy()
    if layout == "D4":
        amax = np.abs(x.reshape(24, 4, 32)).max(2)
        off = heads.view(np.float32) != amax / np.float32(127)
        assert off.any(), "the two divisions differ at places"


def test_mmq_block_byte_by_byte() -> None:
    """One block by the words of the definition, value by value."""
    x = drawn(1, 1, 2, 128)
    block = quantize_mmq_q8_1(on(x), "DS4", 128).cpu().numpy()[0, 0, 0, 0]
    for g in range(4):
        values = x[0, 0, 0, 32 * g : 32 * g + 32]
        amax = np.abs(values).max()
        d, s = block[4 * g : 4 * g + 4].view(np.float16)
        assert d == np.float16(1 / (np.float32(127) / amax))
        assert abs(float(s) - values.sum(dtype=np.float64)) <= 1e-3 * np.abs(values).sum()
        codes = block[16 + 32 * g : 48 + 32 * g].view(np.int8)
        assert np.abs(codes - values.astype(np.float64) * 127 / amax).max() <= 0.5001
        assert np.abs(codes).max() == 127


def test_mmq_strides_and_ids() -> None:
    """A tensor seen through strides, and rows gathered by their numbers."""
    whole = drawn(3, 2, 6, 300)
    view = on(whole)[::2].transpose(0, 1)[:, :, 1:, :260]
    ids = np.array([4, 0, 0, 2, 3, 1], np.int32)
    expected = np.ascontiguousarray(view.cpu().numpy())
    np.testing.assert_array_equal(quantize_mmq_q8_1(view, "D4").cpu().numpy(), mmq_reference(expected, "D4", 512))
    found = quantize_mmq_q8_1(view, "DS4", 384, on(ids)).cpu().numpy()
    np.testing.assert_array_equal(found, mmq_reference(expected, "DS4", 384, ids))


def test_mmq_refuses_what_it_can_not_do() -> None:
    x = torch.zeros(1, 1, 2, 128)
    with pytest.raises(UsageError, match="layout 'D8'"):
        quantize_mmq_q8_1(x, "D8")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="padded is 100"):
        quantize_mmq_q8_1(x, "D4", 100)
    with pytest.raises(UsageError, match="float32"):
        quantize_mmq_q8_1(x[0], "D4")


@pytest.mark.parametrize("kind", ["int8_static", "fp8_static"])
def test_static(kind: str) -> None:
    x = drawn(4, 100)
    out = TokenCodes(on(np.zeros(token_bytes(4, 100), np.uint8)), 4, 100, kind)
    for call in quantize_tokens(Context(target()), out, Source(matrix(on(x))), "values", 128, 4, 0.25):
        call()
    quantizer = activation(kind).given
    assert quantizer is not None
    expected = quantizer(x, 0.25)
    np.testing.assert_array_equal(out.codes.float().cpu().numpy(), expected.codes.astype(np.float32))
    np.testing.assert_array_equal(out.scales.cpu().numpy(), np.float32(0.25))


@pytest.mark.parametrize("k", [1, 64, 1500])
def test_int8_token(k: int) -> None:
    x = drawn(4, k)
    x[2] = 0
    out = TokenCodes(on(np.zeros(token_bytes(4, k), np.uint8)), 4, k, "int8_token")
    for call in quantize_tokens(Context(target()), out, Source(matrix(on(x))), "values", triton.next_power_of_2(k), 4):
        call()
    codes, scales = out.codes, out.scales
    quantizer = activation("int8_token").quantize
    assert quantizer is not None
    expected = quantizer(x)
    np.testing.assert_array_equal(codes.cpu().numpy(), expected.codes)
    np.testing.assert_array_equal(scales.cpu().numpy(), expected.scales[:, 0])
