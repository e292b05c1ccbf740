"""What lies around products with experts as two launches: the router with its norm, and the sum with the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.backend import GpuBinder
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import q8_1, q8_1_bytes
from octavo.backends.gpu.matmul.experts import routing_fusion
from octavo.backends.gpu.matmul.experts.routing_kernel import route_kernel
from octavo.backends.gpu.weights.device_weights import FloatWeight
from octavo.bench.synthetic import SHAPES, ModelShape, make
from octavo.runtime import EngineConfig
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.loading import open_model
from tests.sampling import slow

EPS = 1e-3


def on_device(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).to(target().device)


def routed(x: np.ndarray, norm: np.ndarray, w: torch.Tensor, bias: np.ndarray | None, used: int, sharing: int) -> Any:
    """What `route_kernel` makes of x: logits, ids, what is normed, and its codes and scales; twice, as counters have to
    be zeros again after it."""
    c = Context(target())
    (tokens, k), n = x.shape, len(w)
    kp = -(-k // 128) * 128
    block, rows = 1 << (kp - 1).bit_length(), 4
    groups, programs = -(-tokens // sharing), -(-n // rows)
    made = torch.full((q8_1_bytes(tokens, kp, tokens),), 0xFF, dtype=torch.uint8, device=c.target.device)
    codes = q8_1(made, tokens, kp, tokens)
    logits, normed = (torch.full((tokens, size), torch.nan, device=c.target.device) for size in (n, k))
    ids = torch.full((tokens, used), -1, dtype=torch.int32, device=c.target.device) if used else None
    source = Source(matrix(on_device(x)), matrix(on_device(norm)), EPS)
    launch = c.launch(
        route_kernel, (programs + sharing, groups), source, w, None if bias is None else on_device(bias),
        matrix(logits), ids, matrix(normed), codes, c.counters(groups), tokens, n, k, kp, used, ROWS=programs, N=rows,
        TOKENS=sharing, EXPERTS=1 << (n - 1).bit_length(), B=block, warps=4,
    )
    launch()
    launch()
    scale = codes.scale.view(kp // 32, tokens).cpu().numpy().T.repeat(32, 1)
    return (logits.cpu().numpy(), None if ids is None else ids.cpu().numpy(), normed.cpu().numpy(),
            codes.codes.view(tokens, kp).cpu().numpy() * scale)


@pytest.mark.parametrize(
    ("tokens", "n", "k", "used", "sharing", "dtype"),
    [(1, 32, 136, 4, 1, torch.float32), (5, 33, 136, 8, 4, torch.float32), (3, 5, 256, 5, 2, torch.bfloat16),
     (2, 9, 128, 0, 2, torch.float16), slow((9, 128, 2880, 8, 4, torch.float32))],
)
def test_route(tokens: int, n: int, k: int, used: int, sharing: int, dtype: torch.dtype) -> None:
    """Against the reference's norm and choice, and float64 products; equal logits go to the lower place."""
    rng = np.random.default_rng(tokens)
    x, norm = rng.standard_normal((tokens, k), np.float32) * 3, rng.uniform(-2, 2, k).astype(np.float32)
    w = on_device(rng.standard_normal((n, k), np.float32)).to(dtype)
    w[n // 2] = w[n // 3]  # of equals
    bias = rng.standard_normal(n, np.float32) if n % 2 else None
    if bias is not None:
        bias[n // 2] = bias[n // 3]
    logits, ids, normed, codes = routed(x, norm, w, bias, used, sharing)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + EPS) * norm
    product = expected @ w.double().cpu().numpy().T + (0 if bias is None else bias)
    np.testing.assert_allclose(normed, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logits, product, rtol=1e-4, atol=1e-4)
    largest = np.abs(expected).reshape(tokens, -1)
    assert np.abs(codes[:, :k] - expected).max() <= largest.max() / 127
    assert not codes[:, k:].any()
    if used:
        np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, :used])


@pytest.mark.parametrize(("tokens", "n", "k"), [(40, 33, 200), slow((100, 128, 2048))])
def test_route_of_many_tokens(tokens: int, n: int, k: int) -> None:
    """As `test_route`, by tensor cores and several programs a tile; twice, as counters have to be zeros again."""
    rng, c = np.random.default_rng(tokens), Context(target())
    x, norm = rng.standard_normal((tokens, k), np.float32) * 3, rng.uniform(-2, 2, k).astype(np.float32)
    w, bias = rng.standard_normal((n, k), np.float32), rng.standard_normal(n, np.float32)
    logits, normed = (torch.full((tokens, size), torch.nan, device=c.target.device) for size in (n, k))
    source = Source(matrix(on_device(x)), matrix(on_device(norm)), EPS)
    weight = FloatWeight(1, n, k, on_device(w)[None])
    for _ in range(2):
        logits.fill_(torch.nan)
        routing_fusion.launch_many(c, source, weight, [on_device(bias)], logits, normed)()
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + EPS) * norm
    np.testing.assert_allclose(normed.cpu().numpy(), expected, rtol=1e-5, atol=1e-6)
    product = expected @ w.astype(np.float64).T + bias
    np.testing.assert_allclose(logits.cpu().numpy(), product, rtol=1e-4, atol=2e-5 * k**0.5 * 10)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_number_is_a_place_outside() -> None:
    """Of tokens that are NaN or infinite: ids are places, and those of other tokens are their own."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 128), np.float32), on_device(rng.standard_normal((12, 128), np.float32))
    x[1, 5], x[2, 7] = np.nan, np.inf
    logits, ids, *_ = routed(x, np.ones(128, np.float32), w, None, 4, 4)
    assert ids.min() >= 0
    assert ids.max() < 12
    assert all(len(set(row)) == 4 for row in ids.tolist())
    for token in (0, 3):
        np.testing.assert_array_equal(ids[token], np.argsort(-logits[token], kind="stable")[:4])


MODELS = {
    "qwen3moe": ModelShape("qwen3moe", 2, 64, 32, 2, 1, 32, 40, False, keys={
        "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}),
    "gpt-oss": ModelShape("gpt-oss", 2, 64, 32, 2, 1, 32, 40, False, keys={
        "expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 32,
        "attention.sliding_window": 128}),
    "qwen2moe": ModelShape("qwen2moe", 2, 64, 32, 2, 1, 32, 40, False, keys={
        "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 32}),
}
"""Sizes so small that kernels in the interpreter take no time."""


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels of the plans that are bound."""
    found: list[str] = []
    finish = GpuBinder._finish

    def watched(binder: GpuBinder) -> Any:
        calls = finish(binder)
        found[:] = [call.kernel.__name__ for each in calls for call in getattr(each, "calls", ())
                    if isinstance(call, Launch)]
        return calls

    monkeypatch.setattr(GpuBinder, "_finish", watched)
    return found


@pytest.mark.parametrize(
    ("arch", "tokens", "routed", "fewer"),
    [("qwen3moe", 1, True, 5), slow(("gpt-oss", 3, True, 5)), slow(("qwen2moe", 2, False, 0)),
     slow(("qwen3moe", 17, True, 3))],
)
def test_models(
    arch: str, tokens: int, routed: bool, fewer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    launches: list[str],
) -> None:
    """Logits are those of launches one by one, but for the order of sums; there are fewer launches. Where a shared
    expert reads what the router's norm gives, that one stays. Calls of the library are not counted."""
    shape = MODELS[arch]
    monkeypatch.setitem(SHAPES, "tiny", shape)
    make("tiny", "MXFP4_MOE" if arch == "gpt-oss" else "Q8_0", path := tmp_path / "tiny.gguf")
    found, counts = [], []
    for fuses in (True, False):
        for limit in () if fuses else ("MOST_TOKENS", "MOST_SUMMED", "MOST_BY_TILES"):
            monkeypatch.setattr(routing_fusion, limit, 0)
        with open_model(path, [GpuBackend()], EngineConfig(n_ctx=64, max_sequences=tokens)) as model:
            sequences = [Sequence() for _ in range(tokens)]
            for step in range(2):
                rows = model.engine.step([Feed(s, [7 + i + 5 * step], 1) for i, s in enumerate(sequences)])
            found.append(rows)
            counts.append(list(launches))
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[0], found[1], atol=2e-2 * np.abs(found[1]).max())
    if target().arch != "interpreter":  # has other kernels around them
        return
    n = shape.n_layer
    assert counts[0].count("route_kernel") == n * routed
    assert counts[0].count("sum_experts_norm_kernel") == (n - 1) * routed
    assert len(counts[0]) <= len(counts[1]) - fewer
