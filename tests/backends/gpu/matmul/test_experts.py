"""Pairs of a token and an expert, sorted and multiplied by tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device import memory
from octavo.backends.gpu.launch.arguments import Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.experts import launch as experts
from octavo.backends.gpu.matmul.experts.expert_shapes import ExpertsGroupedShape, ExpertsHopperShape
from octavo.backends.gpu.matmul.experts.kernel import gather_kernel, sort_kernel
from octavo.backends.gpu.matmul.w4a16 import launch as w4a16
from octavo.backends.gpu.pointwise.expressions import expression_of
from octavo.backends.gpu.weights.layout import layout_of
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name, dequantize
from octavo.graph.node import Node
from octavo.graph.ops import apply
from tests.sampling import some

DEVICE = GpuBackend().target.device
BLOCK_M = 32
SHAPE = dispatch.portable_experts(None, 70, 256, 8.0, "interpreter")
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
    tiles = torch.full((len(ids) // BLOCK_M + n_experts, 3), -1, dtype=torch.int32, device=DEVICE)
    context, expected = Context(GpuBackend().target), np.bincount(ids.astype(int), minlength=n_experts)
    context.launch(
        sort_kernel, (n_experts,), given, order, counts, tiles, len(ids), BLOCK_M=BLOCK_M, B=experts.SORT_BLOCK,
        EXPERTS=0,
    )()
    assert order.tolist() == np.argsort(ids, kind="stable").tolist()
    assert counts.tolist() == expected.tolist()
    found = [(e, list(range(first, end))) for e, first, end in tiles.tolist()]
    assert all(len(places) <= BLOCK_M for _, places in found)
    assert [p for _, places in found for p in places] == list(range(len(ids)))
    assert np.bincount([e for e, places in found for _ in places], minlength=n_experts).tolist() == expected.tolist()


@pytest.mark.parametrize(("kind", "together"), [("values", 1), ("values", 8), ("swiglu", 4)])
def test_rows_are_gathered_in_the_order_of_w4a16_hopper(kind: str, together: int) -> None:
    """Number 4t + b + 2c of 16 goes to place 8b + 2t + c; of `values` two pairs share a row."""
    sharing, k, kp = (2, 100, 128) if kind == "values" else (1, 100, 128)
    rows = [NUMBERS.standard_normal((12 // sharing, k)).astype(np.float32) for _ in range(2)]
    x, other = (torch.from_numpy(r).to(DEVICE) for r in rows)
    order = torch.from_numpy(NUMBERS.permutation(12).astype(np.int32)).to(DEVICE)
    out = torch.full((12, kp), torch.nan, dtype=torch.float16, device=DEVICE)
    source = Source(matrix(x), matrix(other) if kind == "swiglu" else None)
    Context(GpuBackend().target).launch(
        gather_kernel, (-(-12 // together), 2), source, order, out, 12, sharing, k, kp,
        KIND=expression_of(kind) if kind == "swiglu" else kind, ROWS=together, B=64,
    )()
    values = rows[0] if kind == "values" else rows[0] / (1 + np.exp(-rows[0])) * rows[1]
    expected = np.zeros((12, kp), np.float32)
    expected[:, :k] = values[order.cpu().numpy() // sharing]
    for place in range(kp):
        b, t, c = place % 16 // 8, place % 8 // 2, place % 2
        column = expected[:, place - place % 16 + 4 * t + b + 2 * c]
        np.testing.assert_allclose(out[:, place].cpu().numpy(), column, atol=2e-3, rtol=1e-3)


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
    of_x, of_pairs = (experts.Rows(v, Source(matrix(v.view(-1, 256))), "values", v.numel() // 256) for v in (x, wide))
    parts = [
        experts.product_in(context, SHAPE, w, v, ids, out, sharing)
        for w, v, out, sharing in ((gate, of_x, outs[0], 2), (up, of_x, outs[1], 2), (down, of_pairs, outs[2], 1))
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
    ("pairs", "n_experts", "wanted"),
    [(8, 128, False), (64, 128, False), (256, 128, True), (8, 8, False), (16, 8, True)],
)
def test_when_sorting_pays(pairs: int, n_experts: int, wanted: bool) -> None:
    assert experts.sorts(pairs, n_experts) == wanted


def test_fewer_reads_pay_where_a_product_of_few_pairs_is_no_dearer() -> None:
    assert not experts.sorts(32, 32)
    assert experts.sorts(32, 32, experts.MOST_READS[ExpertsHopperShape])
    assert not experts.sorts(64, 128, experts.MOST_READS[ExpertsHopperShape])
    assert experts.sorts(64, 128, experts.MOST_READS[ExpertsGroupedShape])


def test_scales_and_sorted_rows_are_announced() -> None:
    context, tensor = Context(GpuBackend().target), random_matrix("w", by_name("Q4_K"), (4, 8, 512), NUMBERS)
    made = w4a16.f16_scales(context, GpuBackend().load(tensor))
    assert made.shape == (16, 32)
    x, ids = (Node("input", (), ("tokens", *size), kind) for size, kind in (((512,), "f32"), ((2,), "i32")))
    product = apply("mul_mat_id", Node("weight", (), tensor.shape, "weight", {"tensor": tensor}), x, ids)
    more = [
        memory.needs([product], {"tokens": n}, "sm_90") - memory.needs([product], {"tokens": n}, "sm_80")
        for n in (15, 64)
    ]
    assert more == [made.nbytes + 2 * pairs * 512 for pairs in (30, 128)]


@pytest.mark.parametrize(("n", "wanted"), [(48, True), (52, True), (50, False), (7, False)])
def test_experts_whose_scales_begin_between_16_bytes_are_left_to_triton(n: int, wanted: bool) -> None:
    layout = layout_of(by_name("Q4_K"), "f16")
    shape = dispatch.experts(layout, n, 2048, 16.0, "sm_90")
    assert isinstance(shape, ExpertsGroupedShape | ExpertsHopperShape) == wanted
