"""Profiles: every node of a step is there once, and rows add up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.bench.cost import Cost
from octavo.bench.profile import NodeTime, by_node, by_op, group, profile, ready_engine, rooflines_of
from octavo.bench.roofline import Bound, Roofline, roofline_of
from octavo.errors import ContextFullError, UsageError
from octavo.graph.node import Node
from octavo.graph.ops import VIEWS
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig


@pytest.fixture
def engine(model: str) -> Iterator[Engine]:
    with GGUFFile.open(model) as file:
        yield Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64, n_batch=16))


def test_every_node_is_timed_once(engine: Engine) -> None:
    measured = profile(engine, 5, rounds=2)
    nodes = [n for n in engine.schedule.graph.nodes if not n.is_leaf and n.op not in VIEWS]
    assert [t.node for t in measured.nodes] == nodes
    assert all(t.seconds > 0 and t.backend == "reference" for t in measured.nodes)
    assert measured.step_seconds > 0


def test_the_engine_is_as_before(engine: Engine) -> None:
    free = engine.pool.free
    expected = engine.logits([1, 2, 3])
    profile(engine, 5, depth=20, rounds=1)
    assert engine.pool.free == free
    assert (engine.logits([1, 2, 3]) == expected).all()


def test_groups_add_up(engine: Engine) -> None:
    measured = profile(engine, 1, depth=20, rounds=1)
    for key in (by_op, by_node):
        rows = group(measured.nodes, key)
        assert sum(r["seconds"] for r in rows) == pytest.approx(measured.seconds)
        assert sum(r["share"] for r in rows) == pytest.approx(1)
        assert sum(r["calls"] for r in rows) == len(measured.nodes)
        assert sum(r["operations"] for r in rows) == sum(t.cost.operations for t in measured.nodes)
        assert [r["seconds"] for r in rows] == sorted((r["seconds"] for r in rows), reverse=True)
    nodes = {tuple(r["key"]): r for r in group(measured.nodes, by_node)}
    assert nodes["mul_mat", "ffn_down", "F32"]["calls"] == 2, "a node of all layers is one row"
    assert (
        nodes["attention", "attn", ""]["bytes"] == 2 * 2 * 2 * 16 * 2 * 21
    )  # layers, k and v, heads, dim, f16, positions


def test_steps_that_can_not_be(engine: Engine) -> None:
    with pytest.raises(UsageError, match=r"a step of 17 tokens \(allowed: 1 to 16\)"):
        profile(engine, 17)
    with pytest.raises(UsageError, match="0 rounds"):
        profile(engine, 1, rounds=0)
    with pytest.raises(ContextFullError):
        profile(engine, 5, depth=60)


def test_a_context_that_the_model_was_not_made_for(model: str) -> None:
    with GGUFFile.open(model) as file, pytest.raises(UsageError, match=r"a context of 513.*up to 512"):
        ready_engine(file, "reference", 1, 512, "f16")


def product(dtype: Any, formats: str = "Q4_K") -> Node:
    """A product of a matrix in a format with activations of a type."""
    tensor: Any = SimpleNamespace(format=SimpleNamespace(name=formats))
    weight = Node("weight", (), (64, 32), "weight", {"tensor": tensor})
    x = Node("input", (), ("tokens", 32), dtype)
    return Node("mul_mat", (weight, x), ("tokens", 64), "f32", name="blk.0.ffn_up")


CARD = Roofline("gpu", 4000.0, {8: 2_000_000.0, 16: 1_000_000.0})


@pytest.mark.parametrize(
    ("backend", "dtype", "seconds"),
    [("gpu", "bf16", 2e-6), ("gpu", "q8_1", 2e-6), ("gpu", "int8_token", 1e-6), ("gpu", "fp8_static", 1e-6),
     ("cpu", "q8_1", 1e-6), ("cpu", "f32", 2e-6)],
)
def test_products_of_8_bits_take_half_as_long(backend: str, dtype: Any, seconds: float) -> None:
    """Blocks of a GPU become halves where many are multiplied."""
    line = Roofline(backend, CARD.read, CARD.gops)
    assert line.bound(product(dtype), Cost(weights=4000, operations=2_000_000_000)) == Bound(1e-9, seconds)


def test_rows_say_how_near_the_limit_they_are() -> None:
    few = [NodeTime(product("q8_1"), "gpu", 2e-6, Cost(weights=4_000_000, operations=1_000_000)) for _ in range(3)]
    many = [NodeTime(product("int8_token", "INT4"), "gpu", 4e-6, Cost(weights=4_000_000, operations=4_000_000_000))]
    norm = NodeTime(Node("rms_norm", (), ("tokens", 32), "f32", name="blk.0.ffn_norm"), "gpu", 1e-6, Cost())
    rows = {tuple(row["key"]): row for row in group([*few, *many, norm], by_node, {"gpu": CARD})}
    near = rows["mul_mat", "ffn_up", "Q4_K"]
    assert (near["of_limit"], near["bound"]) == (pytest.approx(0.5), "reading")
    far = rows["mul_mat", "ffn_up", "INT4"]
    assert (far["of_limit"], far["bound"]) == (pytest.approx(0.5), "multiplying")
    assert rows["rms_norm", "ffn_norm", ""]["bound"] is None
    assert all(row["of_limit"] is None for row in group(few, by_node))


def test_floats_on_a_cpu_are_bound_by_reading_or_not_known() -> None:
    """Their limit is not measured: a prompt's products, for which reading takes least, have no share of it."""
    line, product_of_floats = Roofline("cpu", 40.0, {8: 1000.0}), product("f32")
    few = line.bound(product_of_floats, Cost(weights=4_000_000, operations=4_000_000))
    assert few.share(2e-4) == (pytest.approx(0.5), "reading")
    many = line.bound(product_of_floats, Cost(weights=4_000_000, operations=1_000_000_000))
    assert many.share(1e-2) is None
    assert (many + line.bound(product("q8_1"), Cost(operations=2_000_000_000))).share(4e-3) == (
        pytest.approx(0.5), "multiplying",
    )


def test_limits_that_are_not_known() -> None:
    assert Roofline("gpu").bound(product("f32"), Cost(4000, 0, 2000)) == Bound()
    assert Bound().share(1.0) is None
    assert roofline_of(ReferenceBackend(), 1) == Roofline("reference")


def test_limits_of_the_backends_in_use(engine: Engine) -> None:
    assert rooflines_of(engine) == {"reference": Roofline("reference")}
