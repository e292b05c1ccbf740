"""Pairs of a token and an expert at slots, multiplied by `mma.sync`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.experts import launch as experts
from octavo.backends.gpu.matmul.experts.expert_shapes import ExpertsMmaShape
from octavo.backends.gpu.matmul.experts.mma_kernel import slot_kernel
from octavo.backends.gpu.pointwise.expressions import expression_of
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, dequantize
from tests.sampling import some

DEVICE = GpuBackend().target.device
NUMBERS = np.random.default_rng(0)


@pytest.mark.parametrize(
    "ids",
    [NUMBERS.integers(0, 8, 100), NUMBERS.integers(0, 16, 150), np.full(40, 3), np.arange(7)[::-1], np.full(1, 15)],
    ids=["random", "more than a block", "one expert", "backwards", "one pair"],
)
def test_each_pair_has_a_slot_in_a_tile_of_its_expert(ids: np.ndarray[Any, Any]) -> None:
    n_experts, size, count = 16, 8, len(ids)
    n_tiles = count // size + min(n_experts, count)
    given = torch.from_numpy(ids.astype(np.int32)).to(DEVICE)
    slots, pairs, tiles = (
        torch.full((n,), -7, dtype=torch.int32, device=DEVICE) for n in (count, n_tiles * size, n_tiles)
    )
    Context(GpuBackend().target).launch(
        slot_kernel, (n_experts,), given, slots, pairs, tiles, count, n_tiles, SLOTS=size, EXPERTS=n_experts, B=128
    )()
    used = sum(-(-c // size) for c in np.bincount(ids))
    assert (tiles[used:] == -1).all(), "tiles that there are none of"
    assert tiles[:used].tolist() == sorted(tiles[:used].tolist())
    at = slots.cpu().numpy()
    assert tiles.cpu().numpy()[at // size].tolist() == ids.tolist()
    assert pairs.cpu().numpy()[at].tolist() == list(range(count))
    assert (pairs[: used * size] == -1).sum() == used * size - count


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "numbers"),
    some([("Q4_K", (1, 1, 2, 1)), ("MXFP4", (1, 2, 4, 2)), ("Q6_K", (2, 1, 1, 0)), ("Q8_0", (2, 2, 2, 1)),
          ("Q2_K", (2, 1, 2, 1)), ("Q5_0", (1, 1, 4, 1))], 2),
)
@pytest.mark.parametrize("kind", ["values", "swiglu"])
def test_products(name: str, numbers: tuple[int, int, int, int], kind: str) -> None:
    """Of two products, of which the second finds what the first has sorted and quantized; one expert has many pairs."""
    n_experts, n, k, tokens, used = 4, 38, 512, 9, 2
    sharing = used if kind == "values" else 1
    weights = [random_matrix(w, by_name(name), (n_experts, n, k), NUMBERS) for w in ("gate", "up")]
    ids = NUMBERS.integers(0, n_experts, (tokens, used), dtype=np.int32)
    ids[:, 0] = 3
    x, other = (NUMBERS.standard_normal((tokens * used // sharing, k)).astype(np.float32) for _ in range(2))
    on_device = [torch.from_numpy(v).to(DEVICE) for v in (x, other)]
    source = Source(*map(matrix, on_device)) if kind == "swiglu" else Source(matrix(on_device[0]))
    rows = experts.Rows(on_device[0], source, expression_of(kind) if kind == "swiglu" else kind, len(x))
    context, chosen = Context(GpuBackend().target), torch.from_numpy(ids).to(DEVICE)
    outs = [torch.full((tokens, used, n), torch.nan, device=DEVICE) for _ in weights]
    shape = ExpertsMmaShape(*numbers, short=False)
    parts = [
        experts.product_in(context, shape, GpuBackend().load(w), rows, chosen, out, sharing)
        for w, out in zip(weights, outs, strict=True)
    ]
    assert [len(p) for p in parts] == [3, 1]
    for call in (c for p in parts for c in p):
        call()
    values = x if kind == "values" else x / (1 + np.exp(-x)) * other
    values = values.reshape(tokens, -1, k).repeat(sharing, 1)
    for weight, out in zip(weights, outs, strict=True):
        expected = np.einsum("tunk,tuk->tun", dequantize(weight)[ids], values)
        assert np.linalg.norm(out.cpu().numpy() - expected) < 0.012 * np.linalg.norm(expected)
