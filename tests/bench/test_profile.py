"""Profiles: every node of a step is there once, and rows add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.bench.profile import by_node, by_op, group, profile, ready_engine
from octavo.errors import ContextFullError, UsageError
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
