"""Attention to keys that are values too, in caches of codes, on the GPU backend with its kernels interpreted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.attention import attention_tiles
from octavo.backends.gpu.device import memory
from octavo.backends.reference import ReferenceBackend
from octavo.bench.cases import OpCase, run
from octavo.graph.node import Node
from octavo.graph.schedule import root
from tests.backends.comparison import compare
from tests.sampling import slow

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered"),  # in sums for tokens beyond the last, which are not kept
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
]

SHAPES = {
    "96": {"heads": 4, "kv_heads": 1, "dim": 96, "shared": 64},
    "576": {"heads": 16, "kv_heads": 1, "dim": 576, "shared": 512},  # DeepSeek-V2-Lite's
    "128 heads": {"heads": 128, "kv_heads": 1, "dim": 576, "shared": 512},  # DeepSeek-V3's
    "two heads": {"heads": 34, "kv_heads": 2, "dim": 64, "shared": 64, "window": 20, "cap": 1, "sinks": 1},
    "all values": {"heads": 3, "kv_heads": 1, "dim": 128, "shared": 128},
}
STEPS: dict[str, tuple[int, tuple[int, ...], dict[str, int]]] = {
    "one": (1, (70,), {}), "three decode": (3, (1, 64, 130), {}), "prompt": (20, (0,), {}),
    "some begin, some go on": (20, (0, 70, 3), {}), "some decode meanwhile": (11, (90, 40), {"decodes": 1}),
}
KINDS = ("int8", "fp8", "int4")
QUICK = {("int8", "96", step) for step in STEPS} | {("fp8", "96", "one"), ("int4", "96", "one"), ("int8", "576", "one")}
CASES_OF_KINDS = [(kind, shape, step) for kind in KINDS for shape in SHAPES for step in STEPS]


def op_case(kind: str, shape: str, step: str, **more: Any) -> OpCase:
    tokens, past, decodes = STEPS[step]
    return OpCase("attention", tokens, {**SHAPES[shape], "cache": kind, **decodes, **more}, past=past)


def held_to_reference(case: OpCase) -> None:
    built = case.build()
    found = compare(case, run(built, [GpuBackend()]), run(built, [ReferenceBackend()]))
    assert found.ok, found


@pytest.mark.few(4)
@pytest.mark.parametrize(("kind", "shape", "step"), [c if c in QUICK else slow(c) for c in CASES_OF_KINDS])
def test_steps(kind: str, shape: str, step: str) -> None:
    held_to_reference(op_case(kind, shape, step))


OTHER_TILES = [(kind, part, step) for kind in (*KINDS, "q8_0") for part, step in (
    (0, "three decode"), (64, "some begin, some go on"), (32, "one"))]


@pytest.mark.parametrize(
    ("kind", "part", "step"), [c if c[:2] in (("q8_0", 0), ("int8", 64)) else slow(c) for c in OTHER_TILES]
)
def test_what_is_not_read_ahead(kind: str, part: int, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole queries, and some values at a time, as GPUs take them whose registers do not hold a query; the last part of
    64 is not whole."""
    tile = attention_tiles.AttentionTile(16, 4, 32, part=part)
    monkeypatch.setattr(attention_tiles, "latent", lambda *_: tile)
    held_to_reference(op_case(kind, "96", step))


@pytest.mark.parametrize("kind", ["int8", slow("int4")])
def test_a_result_that_is_quantized(kind: str) -> None:
    """By the launch that combines shares, which rotates them back before."""
    shape = {**SHAPES["all values"], "heads": 4, "n": 48, "cache": kind}
    held_to_reference(OpCase("quantized_attention", 2, shape, ("Q4_K",), past=(30, 90)))


@pytest.mark.parametrize("values", [0.0, np.nan, np.inf])
def test_keys_that_are_zeros_or_no_numbers(values: float) -> None:
    """Zeros are attended to evenly; a NaN token makes NaN of whatever sees it."""
    built = op_case("int8", "96", "one").build()
    before, last = built.steps
    k = before[0]["k"].copy()
    k[slice(None) if values == 0 else 5] = values
    changed = replace(built, steps=(({**before[0], "k": k}, before[1]), last))
    found = run(changed, [GpuBackend()])
    if values == 0:
        expected = run(changed, [ReferenceBackend()])
        np.testing.assert_allclose(found[-1], expected[-1], rtol=1e-3, atol=1e-6)
    else:
        assert not np.isfinite(found[-1]).any()


def attention_node(kind: str, shared: int, static: bool = False) -> Node:
    node = next(n for n in op_case(kind, "96", "one", shared=shared).build().graph.nodes if n.op == "attention")
    if static:
        kept = root(node.inputs[1])
        cache = replace(kept, attrs={**kept.attrs, "static": np.ones(1, np.float32)})
        node = replace(node, inputs=(node.inputs[0], cache, cache, *node.inputs[3:]))
    return node


@pytest.mark.parametrize(
    ("kind", "shared", "static", "reason"),
    [("int4", 48, False, "of which 48 are values, in a cache of int4 (allowed: multiples of 32)"),
     ("q8_0", 48, False, "of which 48 are values, in a cache of q8_0 (allowed: multiples of 32)"),
     ("fp8", 64, True, "with static scales, not dynamic ones")],
)
def test_what_runs_elsewhere(kind: str, shared: int, static: bool, reason: str) -> None:
    """Values that are not whole blocks, which can't be rotated back, and scales that no kernel has."""
    assert GpuBackend().supports(attention_node(kind, shared, static)) == (False, f"keys that are values too {reason}")


def test_no_block_in_shared_memory_is_read_ahead() -> None:
    """On a card products of such a block were wrong where the loop keeps it from turn to turn."""
    for arch in ("sm_80", "sm_90", "sm_100", "gfx942"):
        for kind, rows in itertools.product(KINDS, (16, 128)):
            tile = attention_tiles.latent(rows, arch, False, kind)
            assert not tile.ahead or tile.block_n < 64


def test_each_type_has_a_kernel() -> None:
    for kind in ("f16", "f32", "q8_0", *KINDS):
        assert GpuBackend().supports(attention_node(kind, 64)) == (True, "")


def test_rotated_queries_are_counted() -> None:
    limits = {"tokens": 512, "rows": 64, "sequences": 1, "boundaries": 2, "pages": 1}
    more = [memory.needs([attention_node(kind, 64)], limits, "sm_90") for kind in ("q8_0", "int4")]
    assert more[1] - more[0] == 512 * 4 * 96 * 4
