"""Of activations only what their readers take is made."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.attention import decode_mma_launch
from octavo.backends.gpu.attention.attention_arguments import PagedCache
from octavo.backends.gpu.attention.launch import attend, quantizes
from octavo.backends.gpu.compile import gluon
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch import call as launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, Cache, activation_bytes
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.activation_layouts import ReadLayouts, copies, read_layouts
from octavo.backends.gpu.matmul.epilogue_fusion import BoundNode
from octavo.backends.gpu.weights.load import load
from octavo.backends.gpu.weights.row_scales import load_rows
from octavo.graph.node import Graph, Node
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.loading import load as load_model
from tests.backends import row_products
from tests.backends.gpu.matmul.test_w4a16 import reordered, stored

K = 256


def plan(*readers: tuple[str, list[int]], both: bool = True) -> tuple[list[BoundNode], Graph]:
    """A norm of eight tokens and products that read it: an op, and the rows of its weights each."""
    x = Node("input", (), ("tokens", K), "f32", name="x")
    norm = Node("rms_norm", (x,), ("tokens", K), "q8_1")
    out = Activation(torch.zeros(1 << 14, dtype=torch.uint8), 8, K, both=both)
    bound = [BoundNode(norm, [torch.zeros(8, K)], out, [])]
    for op, rows in readers:
        weights: list[Any] = [load(stored("Q4_K" if n % 2 else "Q6_K", n, K), "cpu") for n in rows]
        inputs = [out, *weights] if op == "mul_mat_concat" else [*weights, out]
        bound.append(BoundNode(Node(op, (norm,), ("tokens", sum(rows)), "f32"), inputs, torch.zeros(8, sum(rows)), []))
    return bound, Graph.of(*(b.node for b in bound[1:]))


@pytest.mark.parametrize(
    ("readers", "found"),
    [
        ([("mul_mat", [40])], {"ordered"}),
        ([("mul_mat", [4])], {"plain"}),
        ([("mul_mat_add", [40]), ("mul_mat_concat", [41, 50])], {"ordered"}),
        ([("mul_mat", [40]), ("mul_mat", [4])], None),
        ([("mul_mat_concat", [40, 5])], None),
        ([("mul_mat", [40]), ("mul_mat_id", [40])], None),
        ([("copy", [])], None),
    ],
)
def test_what_readers_want(
    readers: list[tuple[str, list[int]]], found: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products by few rows take codes here."""
    monkeypatch.setattr(dispatch, "w4a16", lambda layout, n, kp, tokens, arch: n >= 40)
    expected = {} if found is None else {0: frozenset(found)}
    assert read_layouts(Context(target()), *plan(*readers)) == expected
    assert read_layouts(Context(target()), *plan(*readers, both=False)) == {}
    if any(op == "mul_mat" for op, _ in readers):
        assert read_layouts(Context(target(), deterministic=True), *plan(*readers)) == {}


@pytest.mark.parametrize(
    ("readers", "found"),
    [
        ([("mul_mat", [40])], True),
        ([("mul_mat", [4]), ("mul_mat_concat", [5, 50])], True),
        ([("mul_mat", [4]), ("mul_mat_concat", [5, 6])], False),
        ([("mul_mat", [4]), ("mul_mat_id", [40]), ("copy", [])], False),
    ],
)
def test_attention_is_told_whether_products_copy_weights(
    readers: list[tuple[str, list[int]]], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only beside these it takes as much shared memory for a short context: products without get less of the L1."""
    monkeypatch.setattr(dispatch, "w4a16", lambda layout, n, kp, tokens, arch: n >= 40)
    assert copies(Context(target()), plan(*readers)[0]) is found
    assert not copies(Context(target()), plan(*readers, both=False)[0])
    monkeypatch.setattr(gluon, "usable", lambda name: True)
    hopper = replace(target(), arch="sm_90")
    q, keys = torch.zeros(8, 4, 64), torch.zeros(64, 1, 64, dtype=torch.float16)
    cache = PagedCache(keys, keys, None, None, 1, torch.zeros(8, 4, dtype=torch.int32), 4)
    shapes = [decode_mma_launch.shape_of(Context(hopper, copies=told), q, cache, {}) for told in (True, False)]
    assert [shape is None for shape in shapes] == [False, True]


@pytest.mark.parametrize(("tokens", "found"), [(2, False), (3, True)])
def test_products_with_scales_of_rows_copy_weights(tokens: int, found: bool) -> None:
    """All but those of `row_matvec_kernel`."""
    weight = load_rows(row_products.matrix("INT8", 40, K), "cpu")
    node = Node("mul_mat", (), ("tokens", 40), "f32")
    assert copies(Context(target()), [BoundNode(node, [weight, None], torch.zeros(tokens, 40), [])]) is found


def test_all_is_made_where_a_kernel_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(launch, "PendingKernels", lambda launches: SimpleNamespace(finish=lambda: None))
    monkeypatch.setattr(gluon, "_given_up", set())
    calls = ReadLayouts([lambda: ran.append("ordered")], lambda: [lambda: ran.append("all")])
    monkeypatch.setattr(gluon, "_given_up", {"w4a16_multicta"})
    calls()
    assert ran == ["all"]
    calls = ReadLayouts([lambda: ran.append("ordered")], lambda: [lambda: ran.append("all")])
    calls()
    assert ran == ["all", "ordered"]


def test_attention_of_many_single_tokens_in_order() -> None:
    """More than are made codes of: float16 in order without floats before it, where that alone is read."""
    c, tokens = Context(target()), 33
    device = c.target.device
    q, keys, values = (torch.randn(n, heads, 64, device=device) for n, heads in ((tokens, 2), (64, 1), (64, 1)))
    positions = torch.arange(tokens, dtype=torch.int32, device=device) % 5
    starts = torch.arange(tokens + 1, dtype=torch.int32, device=device)
    pages = torch.zeros(tokens, 2, dtype=torch.int32, device=device)
    inputs = [q, Cache(keys.half()), Cache(values.half()), positions, starts, pages]
    floats = torch.full((tokens, 128), torch.nan, device=device)
    nbytes = activation_bytes(tokens, 128, "sm_90")
    out = Activation(torch.zeros(nbytes, dtype=torch.uint8, device=device), tokens, 128, both=True)
    narrow = replace(c, wanted=frozenset({"ordered"}))
    assert quantizes(narrow, q, pages, out)
    assert not quantizes(c, q, pages, out)
    for context, place in ((c, floats), (narrow, out)):
        for call in attend(context, inputs, {"scale": 0.125}, place):
            call()
    assert out.ordered is not None
    torch.testing.assert_close(out.ordered, reordered(floats.half()), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("planar", [True, False])
def test_attention_gives_no_floats_for_products_of_fp8_in_blocks(planar: bool) -> None:
    c = Context(target())
    raw = torch.zeros(activation_bytes(1, 128, "sm_90"), dtype=torch.uint8, device=c.target.device)
    out = Activation(raw, 1, 128, both=True, always_halves=True, is_planar=planar)
    q, pages = torch.zeros(1, 2, 64, device=c.target.device), torch.zeros(1, 1, dtype=torch.int32)
    assert not quantizes(c, q, pages, out)
    assert quantizes(replace(c, wanted=frozenset({"ordered"})), q, pages, out) != planar


def test_attention_is_bound_once_where_no_product_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes: list[Node] = []
    launches = GpuBackend.launches

    def noted(self: GpuBackend, context: Context, node: Node, inputs: Any, out: Any) -> Any:
        nodes.append(node)
        return launches(self, context, node, inputs, out)

    monkeypatch.setattr(GpuBackend, "launches", noted)
    with load_model("demo", device="gpu", n_ctx=64) as model:
        model.engine.step([Feed(Sequence(), [1])])
    attention = [id(node) for node in nodes if node.op == "attention"]
    assert attention
    assert len({*attention}) == len(attention)
