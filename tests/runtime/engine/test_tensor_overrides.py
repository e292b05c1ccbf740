"""Weights that lie elsewhere than their layer: experts on the CPU, the rest on a card."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends.reference import ReferenceBackend
from octavo.errors import BackendError, UsageError
from octavo.graph.node import Node, Sizes
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec, read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.engine.tensor_overrides import overrides
from tests.graph.small import Limited
from tests.runtime.tiny import write

TOKENS = np.random.default_rng(0).integers(0, 256, 70).tolist()
LAYER, EXPERTS, OUTER, SLACK = 1 << 30, 1 << 29, 1 << 28, 1 << 24


class Card(Limited):
    """A device beside the host: attention of a layer takes LAYER bytes, its experts EXPERTS."""

    def __init__(self, room: int = 1 << 40) -> None:
        super().__init__("card")
        self.fusions, self.room = frozenset({"sum_experts", "mul_mat_id_gated", "mul_mat_add"}), room

    def begin_read(self, value: Any) -> Callable[[], Any]:
        return lambda: self.read(value)

    def copy(self, target: Any, source: Any, places: Sequence[int] | None = None) -> None:
        raise AssertionError("there is one card")

    def free(self) -> int:
        return self.room

    def needs(self, nodes: Sequence[Node], limits: Sizes) -> int:
        experts = sum("ffn_down_exps.weight" in i.name for n in nodes for i in n.inputs)
        return LAYER * sum(n.op == "attention" for n in nodes) + EXPERTS * experts + OUTER


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelSpec]:
    """Two layers of four experts."""
    path = tmp_path_factory.mktemp("mixture") / "m.gguf"
    write(path, arch="qwen3moe")
    with GGUFFile.open(path) as file:
        yield read_model(file)


def make(model: ModelSpec, card: Card | None = None, **config: Any) -> Engine:
    given = overrides(config.pop("override_tensor", None), config.pop("n_cpu_moe", 0))
    return Engine(
        model, [card or Card(), ReferenceBackend(fusions=["mul_mat_id_gated"])],
        EngineConfig(n_ctx=128, cache_type="f32", overrides=given, **config),
    )


def on_host(engine: Engine) -> set[str]:
    """What runs on the host: the names and ops of nodes."""
    nodes = [n for split in engine.schedule.splits if split.backend for n in split.nodes]
    return {f"{n.name} {n.op}" for n in nodes if n.op != "copy"}


def moved_layers(engine: Engine) -> list[int]:
    return [i for i in (0, 1) if any(name.startswith(f"blk.{i}.ffn_down_exps") for name in on_host(engine))]


@pytest.mark.parametrize(
    ("n_cpu_moe", "layers"), [(0, []), (1, [0]), (2, [0, 1]), (9, [0, 1]), (1 << 20, [0, 1]), ("all", [0, 1])]
)
def test_experts_of_the_first_layers(mixture: ModelSpec, n_cpu_moe: Any, layers: list[int]) -> None:
    engine = make(mixture, n_cpu_moe=n_cpu_moe)
    assert moved_layers(engine) == layers
    alone = Engine(mixture, [ReferenceBackend()], EngineConfig(n_ctx=128, cache_type="f32"))
    np.testing.assert_array_equal(engine.logits(TOKENS), alone.logits(TOKENS))


def test_all_but_experts_stays_on_the_card_with_their_sum(mixture: ModelSpec) -> None:
    """The host is given tokens, numbers of experts and shares, and gives back a sum; it fuses its own nodes."""
    engine = make(mixture, n_cpu_moe=1)
    ops = {name.split()[-1] for name in on_host(engine)}
    assert ops == {"mul_mat_id_gated", "mul_mat_id_concat", "columns", "weighted_sum"}
    copies = [n for n in engine.schedule.graph.nodes if n.op == "copy"]
    assert [engine.schedule.backends[id(n)] for n in copies] == [1, 1, 1, 0]
    fused = {n.name: engine.schedule.backends[id(n)] for n in engine.schedule.graph.nodes if n.op == "sum_experts"}
    assert len(fused) == 1
    assert {*fused.values()} == {0}


def test_the_first_expression_that_is_found_counts(mixture: ModelSpec) -> None:
    engine = make(mixture, n_cpu_moe="all", override_tensor={r"blk\.0\..*exps": "CUDA0", r"blk\.1\.attn_q\.": "cpu"})
    assert moved_layers(engine) == [1]
    assert {n for n in on_host(engine) if "attn" in n} == {"blk.1.attn_q mul_mat"}


def test_on_the_gpu_is_where_a_layer_is_or_the_first_card(mixture: ModelSpec) -> None:
    engine = make(mixture, gpu_layers=1, override_tensor={r"blk\.0\.ffn_down": "gpu"})
    assert "blk.0.attn_q mul_mat" in on_host(engine)
    assert not any("ffn_down" in name for name in on_host(engine))


def test_auto_moves_as_few_experts_as_it_takes_before_layers(
    mixture: ModelSpec, caplog: pytest.LogCaptureFixture
) -> None:
    whole = 2 * (LAYER + EXPERTS) + OUTER + SLACK
    for room, layers, moved in (
        (whole, 2, []), (whole - EXPERTS, 2, [0]), (whole - 2 * EXPERTS, 2, [0, 1]),
        (whole - 2 * EXPERTS - LAYER, 1, [0, 1]),
    ):
        engine = make(mixture, Card(room), gpu_layers="auto")
        assert (engine.gpu_layers, moved_layers(engine)) == (layers, moved)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "experts of 1 of 2 layers are on the CPU: the GPU's memory lacks room",
        *["experts of 2 of 2 layers are on the CPU: the GPU's memory lacks room"] * 2,
        "1 of 2 layers fit the GPU's memory; the others run on the CPU",
    ]


def test_what_does_not_fit_says_what_would(mixture: ModelSpec) -> None:
    with pytest.raises(BackendError, match="are free: --n-cpu-moe N keeps experts of the first N layers on the CPU"):
        make(mixture, Card(2 * LAYER + OUTER + SLACK), gpu_layers="all")


@pytest.mark.parametrize(
    ("given", "said"),
    [({"override_tensor": {"no_such": "cpu"}}, "override_tensor: no weight's name has 'no_such' in it"),
     ({"override_tensor": {"(": "cpu"}}, r"override_tensor has '\(', no regular expression"),
     ({"override_tensor": {3: "cpu"}}, "override_tensor has 3, no regular expression"),
     ({"override_tensor": {"exps": "tpu"}}, r"override_tensor has device 'tpu' \(allowed: cpu, gpu\)"),
     ({"override_tensor": {"exps": "cuda1"}}, "override_tensor has device 'cuda1'"),
     ({"override_tensor": {"exps": 0}}, "override_tensor has device 0"),
     ({"override_tensor": ["exps=cpu"]}, r"override_tensor is \['exps=cpu'\] \(allowed: a device for each"),
     ({"n_cpu_moe": -1}, r"n_cpu_moe is -1 \(allowed: 0 to 1048576\)"),
     ({"n_cpu_moe": 10**9}, r"n_cpu_moe is 1000000000 \(allowed: 0 to 1048576\)"),
     ({"override_tensor": {"x" * 1001: "cpu"}}, r"an expression of 1001 letters \(allowed: up to 1000\)"),
     ({"n_cpu_moe": "some"}, "n_cpu_moe is 'some'"),
     ({"n_cpu_moe": 1}, "n_cpu_moe: the model has no experts")],
)
def test_what_is_none(random_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        octavo.load(random_path, **given)


def test_on_a_cpu_it_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", arch="qwen3moe")
    with octavo.load(tmp_path / "m.gguf", n_cpu_moe="all", device="cpu") as model:
        assert {split.backend for split in model.engine.schedule.splits} == {0}
