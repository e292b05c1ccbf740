"""Pairs of a token and an expert, sorted and multiplied by tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend, experts
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels.experts import sort_kernel
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, dequantize
from tests.sampling import some

DEVICE = GpuBackend().target.device
NUMBERS = np.random.default_rng(0)


@pytest.mark.parametrize(
    "ids",
    [NUMBERS.integers(0, 8, 100), NUMBERS.integers(0, 16, 2500), np.full(40, 3), np.arange(7)[::-1], np.zeros(1)],
    ids=["random", "more than a block", "one expert", "backwards", "one pair"],
)
def test_sorting_is_stable_and_counts(ids: np.ndarray[Any, Any]) -> None:
    n_experts = 16
    given = torch.from_numpy(ids.astype(np.int32)).to(DEVICE)
    order = torch.full((len(ids),), -1, dtype=torch.int32, device=DEVICE)
    counts = torch.full((n_experts,), -1, dtype=torch.int32, device=DEVICE)
    context = Context(GpuBackend().target)
    context.launch(sort_kernel, (n_experts,), given, order, counts, len(ids), B=experts.SORT_BLOCK)()
    assert order.tolist() == np.argsort(ids, kind="stable").tolist()
    assert counts.tolist() == np.bincount(ids.astype(int), minlength=n_experts).tolist()


@pytest.mark.parametrize(("tokens", "n_experts"), some([(40, 3), (70, 8), (33, 1)], 2))
def test_products_of_one_plan_sort_once(tokens: int, n_experts: int) -> None:
    """Gate and up share tokens and ids; down has the same ids, and a row for each pair."""
    context = Context(GpuBackend().target)
    rng = np.random.default_rng(1)
    stored = [random_matrix(name, by_name("Q8_0"), (n_experts, 70, 256), rng) for name in ("gate", "up", "down")]
    gate, up, down = (GpuBackend().load(w) for w in stored)
    ids = torch.from_numpy(rng.integers(0, n_experts, (tokens, 2), dtype=np.int32)).to(DEVICE)
    x = torch.from_numpy(rng.standard_normal((tokens, 256)).astype(np.float32)).to(DEVICE)
    wide = torch.from_numpy(rng.standard_normal((tokens, 2, 256)).astype(np.float32)).to(DEVICE)
    outs = [torch.full((tokens, 2, 70), torch.nan, device=DEVICE) for _ in stored]
    parts = [
        experts.sorted_product(context, w, v, ids, out, sharing)
        for w, v, out, sharing in ((gate, x, outs[0], 2), (up, x, outs[1], 2), (down, wide, outs[2], 1))
    ]
    assert [len(p) for p in parts] == [3, 1, 2], "sort and halves; neither; halves"
    for call in (c for p in parts for c in p):
        call()
    for weight, v, out in zip(stored, (x, x, wide), outs, strict=True):
        chosen = dequantize(weight)[ids.cpu().numpy()]
        rows = v.cpu().numpy() if v.ndim == 3 else v.cpu().numpy()[:, None].repeat(2, 1)
        expected = np.einsum("tunk,tuk->tun", chosen, rows)
        np.testing.assert_allclose(out.cpu().numpy(), expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("pairs", "n_experts", "kp", "wanted"),
    [(8, 128, 2048, False), (64, 128, 2048, False), (256, 128, 2048, True), (8, 8, 4096, False), (16, 8, 4096, True),
     (8, 128, 768, False), (16, 128, 768, True)],
)  # fmt: skip
def test_when_sorting_pays(pairs: int, n_experts: int, kp: int, wanted: bool) -> None:
    assert experts.sorts(pairs, n_experts, kp) == wanted
