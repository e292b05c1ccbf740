"""Pairs of a token and an expert, whose products are divided evenly among programs that stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.arguments import Biases, Source, matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.experts import grouped_kernel
from octavo.backends.gpu.matmul.experts import launch as experts
from octavo.backends.gpu.matmul.experts.expert_shapes import ExpertsGroupedShape, ExpertsHopperShape
from octavo.backends.gpu.matmul.experts.kernel import sort_kernel
from octavo.backends.gpu.matmul.product import Product
from octavo.backends.gpu.matmul.w4a16 import launch as w4a16
from octavo.backends.gpu.matmul.w4a16 import streamk_kernel
from octavo.backends.gpu.pointwise.expressions import expression_of
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.backends.gpu.weights.layout import layout_of
from octavo.bench.synthetic import random_matrix
from octavo.formats import QTensor, by_name, dequantize
from octavo.graph.pointwise import POINTWISE
from tests.sampling import some

TARGET = GpuBackend().target
NUMBERS = np.random.default_rng(0)
ON_CARD = pytest.mark.skipif(TARGET.arch != "sm_90", reason="Gluon is not interpreted")


@pytest.mark.parametrize(
    "ids",
    [NUMBERS.integers(0, 8, 100), NUMBERS.integers(0, 13, 1500), np.full(40, 3), np.arange(7)[::-1], np.full(1, 12)],
    ids=["random", "more than a block", "one expert", "backwards", "one pair"],
)
def test_tiles_are_listed_without_gaps(ids: np.ndarray[Any, Any]) -> None:
    n_experts, size, count = 13, 8, len(ids)
    given = torch.from_numpy(ids.astype(np.int32)).to(TARGET.device)
    order = torch.full((count,), -1, dtype=torch.int32, device=TARGET.device)
    counts = torch.full((n_experts,), -1, dtype=torch.int32, device=TARGET.device)
    tiles = torch.full((1 + count // size + min(n_experts, count), 3), -1, dtype=torch.int32, device=TARGET.device)
    Context(TARGET).launch(
        sort_kernel, (n_experts,), given, order, counts, tiles, count, BLOCK_M=size, B=1024, EXPERTS=16
    )()
    assert order.tolist() == np.argsort(ids, kind="stable").tolist()
    assert counts.tolist() == np.bincount(ids, minlength=n_experts).tolist()
    (used, *_), *listed = tiles.tolist()
    assert [p for _, first, end in listed[:used] for p in range(first, end)] == list(range(count))
    assert all(0 < end - first <= size and set(np.sort(ids)[first:end]) == {e} for e, first, end in listed[:used])
    assert used == sum(-(-c // size) for c in np.bincount(ids))


@pytest.mark.parametrize("seed", range(12))
def test_each_row_pair_and_part_of_k_is_one_programs(seed: int) -> None:
    """What a program multiplies is what it has had copied, in that order, and all steps of all items are some
    program's, once; those with parts of an item are as many as it waits for, and keep them at places of their own."""
    rng = np.random.default_rng(seed)
    tiles, n, steps = (int(rng.integers(1, most)) for most in (40, 1500, 14))
    block_n, asked = int(rng.choice([64, 128])), int(rng.integers(1, 300))
    across = -(-n // block_n)
    done, sharers = Counter[tuple[int, int, int]](), dict[int, list[int]]()
    places = Counter[int]()
    for program in range(asked):
        work = grouped_kernel.share_of.fn(tiles * across, steps, program, asked, grouped_kernel.LEAST_STEPS.value)
        begin = work.start // steps
        copied = (begin // across, begin % across * block_n, work.start - begin * steps)
        for item in range(begin, -(-work.stop // steps)):
            first = max(work.start - item * steps, 0)
            own = min(work.stop - item * steps, steps) - first
            assert own > 0
            for step in range(first, first + own):
                assert copied == (item // across, item % across * block_n, step)
                done[copied] += 1
                copied = grouped_kernel.step_after.fn(*copied, steps, across * block_n, block_n)
            sharers.setdefault(item, []).append(program)
            if own < steps:
                places[2 * program + (first == 0)] += 1
                between = [streamk_kernel._program_of.fn(at, work) for at in (item * steps, (item + 1) * steps - 1)]
                assert between[0] <= program <= between[1]
    wanted = {(t, r * block_n, s) for t in range(tiles) for r in range(across) for s in range(steps)}
    assert set(done) == wanted
    assert set(done.values()) == {1}
    assert max(places.values(), default=1) == 1
    assert all(programs == list(range(programs[0], programs[-1] + 1)) for programs in sharers.values())


def quantized(name: str, n_experts: int, n: int, k: int) -> tuple[QTensor, QuantWeight]:
    stored = random_matrix("w", by_name(name), (n_experts, n, k), NUMBERS)
    w = GpuBackend().load(stored)
    assert isinstance(w, QuantWeight)
    return stored, w


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_scales_of_e2m1_are_folded_by_row(name: str) -> None:
    """Codes whose bits are moved to a float16, times scales and the row's factor, are the weights."""
    stored, w = quantized(name, 2, 7, 256)
    made = w4a16.f16_scales(Context(TARGET), w).cpu().numpy()[:, :14].view(np.float16).reshape(-1, 14, 2)
    factors = w.halves[1].cpu().numpy()
    assert made.max() < 2**15
    values, group = dequantize(stored).reshape(14, -1), w.layout.group
    for row in range(14):
        for k in range(256):
            scale = float(made[k // 128 * (64 // group) + k % 64 // group, row, k % 128 // 64])
            code = values[row, k] / (scale * 2.0**-14 * factors[row]) if scale else 0.0
            assert abs(code) in (0, 0.5, 1, 1.5, 2, 3, 4, 6)


@pytest.mark.parametrize(("name", "taken"), [("MXFP4", True), ("NVFP4", True), ("Q4_K", True), ("Q6_K", True),
                                             ("IQ4_NL", False), ("Q8_0", True), ("Q5_K", True), ("Q3_K", False)])
def test_layouts_that_become_float16(name: str, taken: bool) -> None:
    layout = layout_of(by_name(name), "exponent" if name == "MXFP4" else "f16")
    p = Product(layout, 768, 2048, 2, "sm_90")
    shapes = [ExpertsGroupedShape.of(p, *numbers) for numbers in ExpertsGroupedShape.space(p)]
    assert any(shapes) == taken
    assert ExpertsGroupedShape.of(p._replace(n=50), 8, 64, 3, 4, 2, 0) is None


@ON_CARD
@pytest.mark.parametrize(("name", "numbers"), some(
    [("Q4_K", (8, 64, 3, 4, 2, 0)), ("MXFP4", (8, 128, 3, 2, 2, 1)), ("Q6_K", (16, 64, 3, 3, 2, 0)),
     ("NVFP4", (32, 128, 6, 2, 1, 1)), ("Q4_0", (32, 64, 4, 3, 1, 0)), ("MXFP4", (16, 64, 3, 4, 2, 0)),
     ("Q4_K", (8, 128, 3, 4, 1, 2)), ("Q6_K", (16, 128, 3, 2, 2, 2)), ("MXFP4", (32, 128, 3, 2, 2, 3)),
     ("Q5_K", (8, 128, 3, 2, 2, 2)), ("Q8_0", (16, 128, 3, 2, 1, 2)), ("Q5_0", (16, 64, 3, 3, 2, 0)),
     ("MXFP4", (64, 128, 3, 8)), ("Q4_K", (32, 128, 4, 8)), ("NVFP4", (128, 128, 2, 8))], 15))
@pytest.mark.parametrize("tokens", [1, 9, 64, 200])
def test_products(name: str, numbers: tuple[int, ...], tokens: int) -> None:
    """Of two products, of which the second finds what the first has sorted; one expert has many pairs. Twice, as
    programs leave counters behind."""
    n_experts, n, k, used = 7, 200, 768 if name in ("Q4_K", "Q5_K", "Q6_K") else 832, 3
    loaded = [quantized(name, n_experts, n, k) for _ in range(2)]
    ids = NUMBERS.integers(0, n_experts, (tokens, used), dtype=np.int32)
    ids[: tokens // 2, 0] = 5
    x = NUMBERS.standard_normal((tokens, k)).astype(np.float32)
    on_device, chosen = torch.from_numpy(x).to(TARGET.device), torch.from_numpy(ids).to(TARGET.device)
    rows, context = experts.Rows(on_device, Source(matrix(on_device)), "values", tokens), Context(TARGET)
    outs = [torch.full((tokens, used, n), torch.nan, device=TARGET.device) for _ in loaded]
    parts = []
    for (_, w), out in zip(loaded, outs, strict=True):
        kind = ExpertsGroupedShape if len(numbers) == 6 else ExpertsHopperShape
        shape = kind.of(Product(w.layout, n, w.kp, 1, "sm_90"), *numbers)
        assert shape is not None
        parts.append(experts.product_in(context, shape, w, rows, chosen, out, used))
    assert [len(p) for p in parts] == [3, 1]
    for _ in range(2):
        for out in outs:
            out.fill_(torch.nan)
        for call in (c for p in parts for c in p):
            call()
        for (stored, _), out in zip(loaded, outs, strict=True):
            expected = np.einsum("tunk,tk->tun", dequantize(stored)[ids], x)
            assert np.linalg.norm(out.cpu().numpy() - expected) < 2e-3 * np.linalg.norm(expected)


@ON_CARD
@pytest.mark.parametrize(
    ("name", "numbers", "gating"),
    [("Q4_K", (8, 128, 4, 2, 2, 2), "swiglu"), ("Q5_K", (8, 128, 4, 2, 2, 2), "swiglu"),
     ("Q6_K", (16, 128, 3, 2, 2, 0), "swiglu"), ("MXFP4", (16, 128, 6, 2, 1, 1), "clamped_swiglu"),
     ("Q6_K", (32, 128, 4, 8), "swiglu"), ("MXFP4", (128, 128, 2, 8), "clamped_swiglu")],
)
@pytest.mark.parametrize("tokens", [3, 70])
def test_gated_products(
    name: str, numbers: tuple[int, ...], gating: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gate and up gated where they are multiplied, and multiplied again, as by launches of their own; of `clamped`
    with biases."""
    n_experts, n, k, used = 7, 256, 768, 3
    kind = ExpertsGroupedShape if len(numbers) == 6 else ExpertsHopperShape
    shape = kind.of(Product(layout_of(by_name(name), "f16"), n, k, 1, "sm_90"), *numbers)
    assert shape is not None
    monkeypatch.setattr(experts, "sorted_shape", lambda *given: shape)
    _, w = quantized(name, n_experts, 2 * n, k)
    _, down = quantized(name, n_experts, k, n)
    ids = torch.from_numpy(NUMBERS.integers(0, n_experts, (tokens, used), dtype=np.int32)).to(TARGET.device)
    x, c = torch.randn((tokens, k), device=TARGET.device), Context(TARGET)
    out, y = (torch.full((tokens, used, size), torch.nan, device=TARGET.device) for size in (2 * n, k))
    halves, rows = out.view(-1, 2 * n).split(n, 1), experts.Rows(x, Source(matrix(x)), "values", tokens)
    numbers_of = POINTWISE[gating].numbers
    biases = torch.randn((2, n_experts, n), device=TARGET.device)
    source = Source(
        matrix(halves[0]), matrix(halves[1]), biases=Biases(*biases, ids) if numbers_of else None,
        numbers=tuple(numbers_of.values()),
    )
    gated = experts.Rows(halves[0], source, expression_of(gating), tokens * used)
    calls = experts.product_in(c, shape, w, rows, ids, out, used)
    others = experts.product_in(c, shape, down, gated, ids, y, 1)
    for call in (*calls, *others):
        call()
    expected = y.clone()
    out.fill_(torch.nan)
    one = experts.BoundProduct(w, rows, ids, out, used, calls)
    made = experts.gated_products(c, one, experts.BoundProduct(down, gated, ids, y, 1, others))
    assert made is not None
    assert [len(part) for part in made] == [3, 1]
    for _ in range(2):
        y.fill_(torch.nan)
        for call in (*made[0], *made[1]):
            call()
        assert torch.linalg.norm(y - expected) < 1e-3 * torch.linalg.norm(expected)
    assert out.isnan().all()
