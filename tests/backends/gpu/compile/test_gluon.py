"""Where this Triton can't compile a kernel of Gluon, portable kernels compute the same, and one warning says so."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from triton.experimental.gluon.language.nvidia.hopper import tma

from octavo.backends.gpu.attention import decode_mma_launch
from octavo.backends.gpu.attention.attention_arguments import PagedCache
from octavo.backends.gpu.attention.launch import attend
from octavo.backends.gpu.compile import cache as compiled
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.compile.warm_up import prepare
from octavo.backends.gpu.device import torch_device
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, Cache, TokenCodes, token_bytes
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.launch import halves_product, product
from octavo.backends.gpu.matmul.w4a16 import hopper_kernel as w4a16_hopper
from octavo.backends.gpu.matmul.w4a16 import streamk_kernel, streamk_multicta_kernel
from octavo.backends.gpu.matmul.w8a8 import gemm
from octavo.backends.gpu.matmul.w8a8.row_scales import quantize_tokens, row_product
from octavo.backends.gpu.weights.layout import layout_of
from octavo.backends.gpu.weights.load import load
from octavo.backends.gpu.weights.row_scales import load_rows
from octavo.bench.synthetic import random_matrix
from octavo.formats import QTensor, by_name, dequantize
from octavo.ops import definition
from octavo.quantizers import encode
from tests.backends import row_products as rows

pytestmark = pytest.mark.skipif(torch_device.target().arch != "interpreter", reason="a card has its own architecture")
runtime = importlib.import_module("triton.runtime.driver")
H100 = replace(torch_device.target(), arch="sm_90")
rng = np.random.default_rng(7)


class Kernel:
    """A kernel that can be launched; `launched` does what it is asked for."""

    arg_names = ()

    def __init__(self, launched: Callable[[], None]) -> None:
        self.launched = launched
        self.options: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any, **options: Any) -> None:
            self.options.append(options)
            self.launched()

        return run


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on an H100, in which nothing has failed yet."""
    monkeypatch.setattr(gluon, "_given_up", set())
    monkeypatch.setattr(gluon, "_said", set())
    monkeypatch.setattr(torch_device, "target", lambda card=None: H100)


def does_not_compile() -> None:
    try:
        raise RuntimeError("async_load has been removed; call async_copy instead")
    except RuntimeError as error:
        raise ValueError("at 15:8:\n    _send_for(b, a)\n    ^") from error


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel(does_not_compile)
    monkeypatch.setattr(gluon, "kernel", lambda name: kernel)
    return kernel


def int8_product() -> None:
    a, b = (rng.integers(-127, 128, (rows, 256), np.int8) for rows in (130, 40))
    scales = rng.random(130, np.float32), rng.random(40, np.float32)
    y = gemm.int8_gemm(*map(torch.from_numpy, (a, b, *scales)))
    np.testing.assert_allclose(y.numpy(), definition.int8_gemm(a, b, *scales), rtol=1e-5)


def test_a_name_that_is_missing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Every kernel needs it, and one line says so."""
    for name in ("compile.gluon_names", *gluon.MODULES.values()):
        monkeypatch.delitem(sys.modules, f"{gluon.FOLDER}.{name}", raising=False)
    for name in ("async_load", "async_copy_global_to_shared"):
        monkeypatch.delattr(tma, name, raising=False)
    with caplog.at_level(logging.WARNING, "octavo"):
        assert not any(map(gluon.usable, gluon.MODULES))
        int8_product()
        assert dispatch.w4a16(layout_of(by_name("Q8_0"), "f16"), 4096, 4096, 512, "sm_90") is None
    (line,) = caplog.messages
    assert "can't compile the kernel int8 of Gluon (AttributeError: " in line
    assert "async_copy_global_to_shared" in line


def test_a_product_that_does_not_compile(broken: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried once."""
    for _ in range(2):
        int8_product()
    assert len(broken.options) == 1
    assert broken.options[0]["enable_fp_fusion"] is True
    (line,) = caplog.messages
    assert "int8" in line
    assert "(RuntimeError: async_load has been removed; call async_copy instead)" in line
    assert "\n" not in line


def test_products_of_other_types(broken: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    """4-bit weights and fp8 with many tokens: the same cause is said once."""
    a = torch.from_numpy(rng.integers(-127, 128, (5, 256), np.int8))
    packed = torch.from_numpy(rng.integers(0, 256, (40, 128), np.uint8))
    x = torch.from_numpy(rng.random((100, 128), np.float32)).to(torch.float8_e4m3fn)
    one = torch.ones(())
    gemm.w4a8_gemm(a, packed, one, torch.ones(40))
    assert torch.equal(gemm.fp8_gemm(x, x, one, one), gemm.fp8_gemm(x, x, one, one))
    assert len(broken.options) == 3
    assert all(options["enable_fp_fusion"] for options in broken.options)
    assert gluon._given_up == {"w4a8", "streamk", "fp8"}
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("name", ["INT8", "FP8", "BF16"])
@pytest.mark.parametrize("terms", [False, True])
def test_few_tokens_by_weights_of_their_type(
    broken: Kernel, caplog: pytest.LogCaptureFixture, name: str, terms: bool
) -> None:
    """As products are bound, with a bias and a residual that is added in place."""
    x, bias, residual = rng.standard_normal((5, 256), np.float32), rng.random(40, np.float32), rng.random((5, 40))
    c, y = Context(H100), torch.from_numpy(residual).float()
    added: Any = [torch.from_numpy(bias), y] if terms else []
    if name == "BF16":
        weight = random_matrix("w", by_name(name), (40, 256), rng)
        given = torch.from_numpy(x).bfloat16()
        calls = product(c, load(weight, "cpu"), given, y, added)
        expected = given.double().numpy() @ dequantize(weight).astype(np.float64).T
    else:
        tensor = rows.matrix(name, 40, 256)
        raw = torch.zeros(token_bytes(5, 256), dtype=torch.uint8)
        codes = TokenCodes(raw, 5, 256, f"{name.lower()}_token")
        (quantize,) = quantize_tokens(c, codes, Source(matrix(torch.from_numpy(x))), "values", 256, 1)
        quantize()
        calls = row_product(c, load_rows(tensor, "cpu"), codes, y, added)
        expected = rows.product(tensor, x)
    assert isinstance(calls[0], gluon.Preferred)
    for call in calls:
        call()
    np.testing.assert_allclose(y.numpy(), expected + (bias + residual if terms else 0), rtol=1e-4, atol=1e-4)
    assert gluon._given_up == ({"streamk", "int8"} if name == "INT8" else {"streamk"})
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(("tokens", "tried"), [(12, {"w4a16_multicta"}), (33, {"w4a16"})])
def test_a_product_of_floats_by_codes(
    broken: Kernel, caplog: pytest.LogCaptureFixture, tokens: int, tried: set[str]
) -> None:
    """Calls that are bound already take the other way as well."""
    weight = QTensor(by_name("Q4_0"), (4, 128), encode(rng.standard_normal((4, 128)).astype(np.float32), "Q4_0"))
    w: Any = load(weight, "cpu")
    c = Context(H100)
    x = torch.from_numpy(rng.integers(-3, 4, (tokens, 128)).astype(np.float16))
    y = torch.full((tokens, 4), torch.nan)
    calls = halves_product(c, w, x, y)
    assert isinstance(calls[-1], gluon.Preferred)
    for _ in range(2):
        for call in calls:
            call()
        np.testing.assert_allclose(y.numpy(), x.float().numpy() @ dequantize(weight).T, rtol=1e-3, atol=0.1)
        y.fill_(torch.nan)
    assert len(broken.options) == len(tried)
    assert all(options["enable_fp_fusion"] for options in broken.options)
    assert gluon._given_up == tried
    assert not isinstance(halves_product(c, w, x, y)[-1], gluon.Preferred)
    small = Activation(torch.zeros(1 << 16, dtype=torch.uint8), 20, 128, both=True)
    assert not isinstance(product(c, w, small, torch.empty(20, 4), ())[-1], gluon.Preferred)
    assert len(caplog.messages) == 1


def test_attention_that_does_not_compile(broken: Kernel) -> None:
    """The portable kernel gives what it gives elsewhere; a window, a cap or a short sequence have no other."""
    q, keys, values = (torch.randn(192, heads, 64) for heads in (2, 1, 1))
    caches = [Cache(x.half()) for x in (keys, values)]
    positions, starts = torch.arange(192, dtype=torch.int32), torch.tensor([0, 192], dtype=torch.int32)
    inputs = [q, *caches, positions, starts, torch.tensor([[1, 0, 2, *[0] * 5]], dtype=torch.int32)]

    def attended(target: torch_device.GpuTarget, **limits: Any) -> tuple[torch.Tensor, bool]:
        out = torch.full((192, 128), torch.nan)
        (call,) = attend(Context(target), inputs, {"scale": 0.125, **limits}, out)
        call()
        return out, isinstance(call, gluon.Preferred)

    (found, tried), (wanted, _) = attended(H100), attended(replace(H100, arch="sm_100"))
    assert torch.equal(found, wanted)
    assert tried
    assert gluon._given_up == {"prefill"}
    gluon._given_up.clear()
    assert not attended(H100, window=20)[1]
    inputs[-1] = inputs[-1][:, :7]
    assert not attended(H100)[1]
    assert not attended(H100, cap=30.0)[1]


@pytest.mark.parametrize(
    ("kind", "sequences", "pages", "wanted"),
    [
        ("", 1, 255, None), ("", 1, 256, (32, 3)), ("", 8, 256, (4, 3)), ("", 17, 256, (1, 3)),
        ("", 2, 68, None), ("", 4, 68, (8, 3)), ("", 5, 68, (6, 3)), ("", 128, 5, (1, 3)),
        ("int8", 1, 31, None), ("int8", 1, 64, (16, 4)), ("int8", 1, 512, (32, 3)), ("int8", 8, 8, (2, 4)),
        ("int8", 8, 64, (4, 3)), ("int8", 32, 64, (1, 3)),
    ],
)
def test_shapes_of_decoding(kind: str, sequences: int, pages: int, wanted: tuple[int, int] | None) -> None:
    """Programs that share a sequence, and blocks under way, on 8 heads of keys; None for the portable kernel."""
    codes = torch.zeros(64, 8, 128, dtype=torch.int8 if kind else torch.float16)
    table = torch.zeros(sequences, pages, dtype=torch.int32)
    cache = PagedCache(codes, codes, None, None, 8, table, pages)
    limits = {"kind": kind, "scales": "static"} if kind else {}
    shape = decode_mma_launch.shape_of(Context(H100), torch.zeros(sequences, 32, 128), cache, limits)
    assert (shape and (shape.splits, shape.stages)) == wanted
    assert not shape or shape.least == (4 if not kind and pages < 256 else 1)
    if shape:
        programs = 2 if shape.splits * sequences * 8 > decode_mma_launch.PROGRAMS else 1
        assert programs * shape.stages * shape.block_n * 256 * codes.element_size() <= 220 << 10


def test_kernels_that_are_compiled_together(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Before a step, on all cores: one that fails is replaced when its turn comes."""
    kernel, ran = Kernel(pytest.fail), []
    kernel.warmup = lambda *arguments, **options: does_not_compile()  # type: ignore[attr-defined]
    monkeypatch.setattr(gluon, "kernel", lambda name: kernel)
    monkeypatch.setattr(
        runtime, "driver", SimpleNamespace(active=SimpleNamespace(set_current_device=lambda card: None))
    )
    monkeypatch.setattr(compiled, "attach", lambda kernel: None)
    monkeypatch.setattr(compiled, "current_device", lambda: 0)
    call = gluon.Preferred("w4a16", lambda: [lambda: ran.append("portable")], H100, (1,))
    prepare([call])
    call()
    assert ran == ["portable"]
    assert len(caplog.messages) == 1


def test_a_fault_of_the_device_is_not_the_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault() -> None:
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    monkeypatch.setattr(gluon, "kernel", lambda name: Kernel(fault))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        int8_product()
    assert gluon.usable("int8")


def test_kernels_are_there() -> None:
    assert all(map(gluon.usable, gluon.MODULES))
    assert gluon.kernel("w4a16") is w4a16_hopper.w4a16_hopper_kernel
    assert gluon.kernel("w4a16_streamk") is streamk_kernel.w4a16_streamk_kernel
    assert gluon.kernel("w4a16_multicta") is streamk_multicta_kernel.w4a16_multicta_kernel
