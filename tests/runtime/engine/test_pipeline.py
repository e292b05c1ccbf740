"""Layers over several backends of one device: how many each gets, the text, and what is said where it can't be."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import BackendError, UsageError
from octavo.graph.node import Node, Sizes
from octavo.graph.protocol import AsyncBackend, Backend
from octavo.models import ModelSpec
from octavo.runtime import Engine, EngineConfig, open_model
from octavo.runtime.cache.page_pool import Sequence as Tokens
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.placement import backends_for, even_parts
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request
from tests.graph.ranks import Meeting, ThreadCommunicator
from tests.graph.small import Limited
from tests.models.table import TOKENS, save_only
from tests.models.tiny_checkpoints import TABLE
from tests.runtime.sampling.test_device_sampling import Eager

INF = float("inf")
MIB = 1 << 20
QUESTIONS = ["What is 12 times 7?", "What is 9 - 4?", "What is 144 divided by 12? " * 20]


class Card(Limited):
    """A backend with so much memory, of which an attention takes a MiB and what else it needs another one."""

    def __init__(self, mib: float) -> None:
        super().__init__("card")
        self.mib = mib

    def free(self) -> int:
        return int(self.mib * MIB)

    def needs(self, nodes: Sequence[Node], limits: Sizes) -> int:
        return MIB * (1 + sum(n.op == "attention" for n in nodes))


@pytest.fixture(scope="module")
def demo() -> Iterator[ModelSpec]:
    """The demo model, ten layers."""
    with octavo.load("demo", device="reference") as model:
        yield model.engine.model


def placed(model: ModelSpec, cards: Sequence[Backend], gpu_layers: Any = "all", **more: Any) -> Engine:
    backends = [*cards, Limited("host")]
    options: dict[str, Any] = {"n_ctx": 64, "n_batch": 8, "n_outputs": 1, **more}
    return Engine(model, backends, EngineConfig(gpu_layers=gpu_layers, **{"pipeline": len(cards)} | options))


@pytest.mark.parametrize(("sizes", "beside", "room", "joined", "counts"), [
    ([1] * 10, [0, 0], [INF, INF], "", (5, 5)),
    ([1] * 10, [0, 0, 0], [INF] * 3, "", (3, 3, 4)),
    ([1] * 10, [0, 4], [INF, INF], "", (7, 3)),
    ([1] * 10, [0, 0], [3, INF], "", (3, 7)),
    ([1] * 10, [2, 0, 1], [5, 3, INF], "", (3, 3, 4)),
    ([5, 1, 1, 1, 1, 1], [0, 0], [INF, INF], "", (1, 5)),
    ([1] * 10, [0, 0], [4, 5], "", None),
    ([1] * 10, [9, 0], [8, INF], "", None),
    ([1] * 6, [0, 0], [INF, INF], "000111", (2, 4)),
    ([1] * 6, [0, 0], [INF, INF], "011110", (5, 1)),
    ([1], [0, 0], [INF, INF], "", (0, 1)),
    ([], [0, 0], [INF, INF], "", (0, 0)),
])
def test_even_parts(sizes: list[int], beside: list[int], room: list[float], joined: str, counts: object) -> None:
    flags = [flag == "1" for flag in joined] or [False] * len(sizes)
    assert even_parts(sizes, beside, room, flags) == counts


@pytest.mark.parametrize(("mib", "counts"), [
    ((99, 99), (5, 5)),
    ((99, 5), (7, 3)),  # a MiB beside, and some for logits
    ((5, 99), (3, 7)),
    ((99, 5, 5), (4, 3, 3)),
    ((3, 99, 5), (1, 6, 3)),
])
def test_cards_of_unlike_memory(demo: ModelSpec, mib: tuple[float, ...], counts: tuple[int, ...]) -> None:
    engine = placed(demo, [Card(each) for each in mib])
    assert engine.stages == counts
    where = {n.name: engine.schedule.backends[id(n)] for n in engine.graph.nodes if n.op == "attention"}
    assert list(where.values()) == [stage for stage, count in enumerate(counts) for _ in range(count)]


def test_what_does_not_fit_says_how_many_layers_would(demo: ModelSpec, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BackendError, match=r"10 of 10 layers take 0.01 \+ 0.01 GiB, but 0.00 \+ 0.01 GiB are free: "
                                           r"--gpu-layers 7 would fit"):
        placed(demo, [Card(5), Card(5.5)])
    with caplog.at_level(logging.WARNING, "octavo"):
        engine = placed(demo, [Card(5), Card(5.5)], "auto")
    assert (engine.gpu_layers, engine.stages) == (7, (3, 4))
    assert "7 of 10 layers fit the GPU's memory; the others run on the CPU" in caplog.text
    assert [split.backend for split in engine.schedule.splits] == [2, 0, 1]
    assert placed(demo, [Card(5), Card(5.5)], 5).stages == (2, 3)
    with pytest.raises(BackendError, match="none fits: try a smaller --ctx-size"):
        placed(demo, [Card(1), Card(1)])


def test_ranks_have_the_layers_that_rank_0_has(demo: ModelSpec) -> None:
    """Whatever memory they have, unless it is too little."""
    cards = [Card(99), Card(99)]
    for backend in cards:
        backend.communicator = ThreadCommunicator(Meeting(2), 1)
    assert placed(demo, cards, pipeline=(8, 2)).stages == (8, 2)
    cards[0].mib = 6
    with pytest.raises(BackendError, match="GiB are free: more ranks or stages have less each, as has a smaller --ctx"):
        placed(demo, cards, pipeline=(8, 2))


def test_layers_on_the_cpu_before_those_of_stages_compute_the_same(demo: ModelSpec) -> None:
    prompt = np.random.default_rng(0).integers(0, 256, 50).tolist()
    want = placed(demo, [ReferenceBackend()]).logits(prompt)
    for layers in (7, 10):
        engine = placed(demo, [ReferenceBackend(), ReferenceBackend()], layers)
        np.testing.assert_array_equal(engine.logits(prompt), want)


@pytest.mark.parametrize(("stages", "layers", "problem"), [
    (11, "all", r"pipeline is 11, but the model has 10 layers \(allowed: 1 to 10\)"),
    (3, 2, r"pipeline is 3, but there are to be 2 layers on the GPUs \(allowed: 1 to 2\)"),
])
def test_more_stages_than_layers(demo: ModelSpec, stages: int, layers: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        placed(demo, [ReferenceBackend() for _ in range(stages)], layers)
    assert caught.value.argument == "pipeline"


@pytest.mark.parametrize(("given", "problem"), [
    ({"pipeline": 0}, r"pipeline is 0 \(allowed: 1 to 64\)"),
    ({"pipeline": "2"}, r"pipeline is '2' \(allowed: an integer, 1 to 64\)"),
    ({"pipeline": 11}, r"pipeline is 11, but the model has 10 layers \(allowed: 1 to 10\)"),
    ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is not an argument of load: did you mean pipeline?"),
])
def test_wrong_arguments(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        octavo.load("demo", device="cpu", **given)


def said(model: Model) -> list[str]:
    """Greedy and seeded, and with penalties, a grammar and log-probabilities."""
    number = octavo.Grammar.json_schema({"type": "integer"})
    found = [*model.generate_many(QUESTIONS, temperature=0.0, max_tokens=40),
             *model.generate_many(QUESTIONS, seed=1, max_tokens=20),
             *model.generate_many(QUESTIONS[:2], seed=2, max_tokens=9, repeat_penalty=1.3, logprobs=2),
             *model.generate_many(QUESTIONS[:2], temperature=0.0, grammar=number)]
    return [f"{reply} {reply.logprobs}" for reply in found]


def test_the_demo_model_says_the_same() -> None:
    """With drafts, several replies in a step, prefixes in the cache, and vectors of texts."""
    with octavo.load("demo", device="cpu", threads=1, max_sequences=3) as model:
        want, vectors = said(model), model.embed(QUESTIONS, pooling="mean")
    for stages in (2, 3):
        with octavo.load("demo", device="cpu", threads=1, max_sequences=3, pipeline=stages) as model:
            assert [b.name for b in model.engine.backends] == ["cpu"] * stages + ["reference"]
            assert said(model) == want
            np.testing.assert_array_equal(model.embed(QUESTIONS, pooling="mean"), vectors)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen35", "gemma2", "rwkv7", "qwen3moe"])
def test_states_windows_and_experts(name: str, tmp_path: Path) -> None:
    """Prompts that share pages and states, which are copied on all backends."""
    save_only(tmp_path, TABLE[name])
    prompts, found = [TOKENS[:n] for n in (90, 70, 80, 90)], []
    for stages in (1, 2):
        with octavo.load(tmp_path, device="cpu", threads=1, pipeline=stages, max_sequences=2, n_ctx=256) as model:
            options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
            replies = [*model.generate_many(prompts, **options), *model.generate_many(prompts[:2], **options)]
            found.append([reply.text for reply in replies])
    assert found[0] == found[1]


class Noted(Eager):
    """One that takes part in steps launched ahead, as a device; it notes what is copied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.copied = list[tuple[int, ...]]()

    def copy(self, target: Any, source: Any, places: Sequence[int] | None = None) -> None:
        super().copy(target, source, places)
        self.copied.append(source.shape)


def test_tokens_of_the_last_backend_are_fed_to_the_first() -> None:
    cards = [Noted(), Noted()]
    assert all(isinstance(card, AsyncBackend) for card in cards)
    with open_model("demo", [*cards, ReferenceBackend()], EngineConfig(pipeline=2, max_sequences=2)) as model:
        assert model.engine.supports_async
        got = model.generate_many(QUESTIONS[:2], temperature=0.0, max_tokens=9)
    assert (2,) in cards[0].copied
    assert {shape[1:] for shape in cards[1].copied} == {(256,)}
    with open_model("demo", [CpuBackend(threads=1)], EngineConfig(max_sequences=2)) as model:
        want = model.generate_many(QUESTIONS[:2], temperature=0.0, max_tokens=9)
    assert list(map(str, got)) == list(map(str, want))


def test_prompts_are_launched_ahead_for_each_stage(demo: ModelSpec) -> None:
    """While nothing is sampled, a step for each stage beside the one that is read."""
    prompts, most = [[5] * 36, [7] * 3], list[int]()
    texts = []
    for stages in (1, 3):
        engine = placed(demo, [Noted() for _ in range(stages)], n_batch=8, max_sequences=2)
        core = EngineCore(engine)
        given = [Request(p, make_sampler(SamplingParams(temperature=0)), 3) for p in prompts]
        core.add(given[0])
        core.step()
        most.append(len(core._in_flight))
        for request in given[1:]:
            core.add(request)
        while not core.scheduler.idle:
            core.step()
        texts.append([list(r.output_tokens) for r in given])
        texts[-1].append(engine.prefill(Tokens(), prompts[0]).tolist())
    assert most == [1, 3]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("device", "names"), [("cpu", ["cpu"] * 3), ("reference", ["reference"] * 2)])
def test_backends_of_a_pipeline(device: str, names: list[str]) -> None:
    backends, layers = backends_for(device, 1, pipeline=2)
    assert ([b.name for b in backends[:2]], layers) == ([device] * 2, "all")
    assert len({id(b) for b in backends[:2]}) == 2
