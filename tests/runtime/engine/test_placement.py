"""Layers on two backends: where they lie, that the text stays the same, and what is said where memory is short."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.data import demo_model_path
from octavo.errors import BackendError, DeviceMemoryError, UsageError
from octavo.formats import QTensor
from octavo.graph.node import Node, Sizes
from octavo.models import ModelSpec
from octavo.quantizers.job.quantize import quantize_file
from octavo.runtime import Engine, EngineConfig, open_model
from octavo.runtime.engine.placement import backends_for, in_order, last_true
from tests.graph.small import Limited

PROMPT = "What is 12 times 7?"
TOKENS = np.random.default_rng(0).integers(0, 256, 70).tolist()
LAYER, OUTER = 1 << 30, 1 << 28
SLACK = 1 << 24  # more than values take


class Small(Limited):
    """A backend with little memory: a layer takes LAYER bytes, the output OUTER."""

    def __init__(self, room: int) -> None:
        super().__init__("small")
        self.room = room

    def free(self) -> int:
        return self.room

    def needs(self, nodes: Sequence[Node], limits: Sizes) -> int:
        return LAYER * sum(n.op == "attention" for n in nodes) + OUTER


@pytest.fixture(scope="module")
def q8_0(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo model in Q8_0, ten layers."""
    path = tmp_path_factory.mktemp("demo") / "q8_0.gguf"
    quantize_file(demo_model_path(), path, "Q8_0")
    return str(path)


def make(architecture: ModelSpec, gpu_layers: object, first: Limited | None = None) -> Engine:
    config = EngineConfig(n_ctx=128, cache_type="f32", gpu_layers=gpu_layers)  # type: ignore[arg-type]
    return Engine(architecture, [first or Limited("first"), Limited("second")], config)


def where(engine: Engine) -> dict[str, int]:
    """Backend of each node, by name and op."""
    chosen = engine.schedule.backends
    return {f"{n.name} {n.op}": chosen[id(n)] for n in engine.schedule.graph.nodes if not n.is_leaf}


@pytest.mark.parametrize(("wanted", "layers"), [(0, 0), (1, 1), (2, 2), (99, 2), ("all", 2), ("auto", 2)])
def test_logits_are_the_same_however_many(architecture: ModelSpec, wanted: object, layers: int) -> None:
    engine = make(architecture, wanted)
    assert engine.gpu_layers == layers
    alone = Engine(architecture, [ReferenceBackend()], EngineConfig(n_ctx=128, cache_type="f32"))
    np.testing.assert_array_equal(engine.logits(TOKENS), alone.logits(TOKENS))


def test_the_last_layers_and_the_output_are_first_and_caches_lie_with_their_layers(architecture: ModelSpec) -> None:
    placed = where(make(architecture, 1))
    assert {placed[f"blk.0.attn{part}"] for part in ("_q mul_mat", " attention", "_output mul_mat")} == {1}
    assert {placed[f"blk.1.attn{part}"] for part in ("_q mul_mat", " attention", "_output mul_mat")} == {0}
    assert [placed[f"blk.{i}.cache_k set_rows"] for i in (0, 1)] == [1, 0]
    assert placed["output mul_mat"] == 0
    assert placed["token_embd get_rows"] == 1


def test_an_embedding_that_is_the_output_lies_with_it_and_with_the_first_layer() -> None:
    with open_model("demo", [ReferenceBackend()], EngineConfig()) as model:
        graph = model.engine.model.graph()
        n_layer = model.engine.model.hparams.n_layer
    embedding = next(w for w in graph.leaves("weight") if w.name == "token_embd.weight")
    rows_of, multiplied = (next(n for n in graph.nodes if n.op == op and embedding in n.inputs)
                             for op in ("get_rows", "mul_mat"))
    for counts, places in {(0,): (1, 1), (1,): (1, 0), (n_layer,): (0, 0), (4, n_layer - 4): (0, 1)}.items():
        place = in_order(graph, n_layer, counts)
        assert (place(embedding, rows_of), place(embedding, multiplied)) == places


@pytest.mark.parametrize("layers", [1, 6])
def test_the_demo_model_says_the_same_on_two_kinds_of_backend(layers: int, q8_0: str) -> None:
    """They quantize activations each in a layout of its own, and fuse differently."""
    first = ReferenceBackend(quantize_activations=True, quantizes=["swiglu"])
    backends = [first, CpuBackend(threads=1)]
    replies = []
    for config in (EngineConfig(gpu_layers=layers, strict=True), EngineConfig()):
        with open_model(q8_0, backends if config.strict else backends[1:], config) as model:
            replies.append("".join(model.generate(PROMPT, temperature=0.0, max_tokens=40)))
            if config.strict:
                ops = [(n.title, model.engine.schedule.backends[id(n)]) for n in model.engine.schedule.graph.nodes[1:]
                       if not n.is_leaf]
                assert {("swiglu:q8_1", 0), ("rms_norm:q8_1", 1), ("quantize", 0)} <= set(ops)
                assert ("rms_norm:q8_1", 0) not in ops
    assert replies[0] == replies[1]


def test_what_one_backend_lacks_a_kernel_for_is_quantized_where_it_runs(q8_0: str) -> None:
    class Partly(ReferenceBackend):
        def supports(self, node: Node) -> tuple[bool, str]:
            weights = [i.name for i in node.inputs if i.op == "weight" and len(i.shape) > 1]
            return ("blk.3.ffn_down.weight" not in weights, "not this one")

    first = Partly(quantize_activations=True, quantizes=["swiglu"])
    with open_model(q8_0, [first, CpuBackend(threads=1)], EngineConfig()) as model:
        engine = model.engine
        nodes = [n for s in engine.schedule.splits if s.backend == 1 for n in s.nodes]
        assert [n.title for n in nodes] == ["copy", "copy", "quantize", "mul_mat_add"]
        assert all(n.dtype == "f32" for n in engine.schedule.graph.nodes if n.op == "copy")
        assert engine.schedule.fallbacks == ("mul_mat_add runs on cpu, not on reference: not this one",)
        reply = "".join(model.generate(PROMPT, temperature=0.0, max_tokens=40))
    with open_model(q8_0, [CpuBackend(threads=1)], EngineConfig()) as model:
        assert reply == "".join(model.generate(PROMPT, temperature=0.0, max_tokens=40))


@pytest.mark.parametrize("wanted", [-1, 1.5, True, "some", None])
def test_what_is_no_number_of_layers(architecture: ModelSpec, wanted: object) -> None:
    with pytest.raises(UsageError, match=r"gpu_layers is .* \(allowed: 0 or more, all, auto\)"):
        make(architecture, wanted)


def test_other_layers_need_a_backend(architecture: ModelSpec) -> None:
    with pytest.raises(UsageError, match=r"gpu_layers is 1, but there is no backend for the other"):
        Engine(architecture, [ReferenceBackend()], EngineConfig(n_ctx=64, gpu_layers=1))


def test_too_many_layers_say_how_many_fit(architecture: ModelSpec) -> None:
    with pytest.raises(BackendError, match=r"2 of 2 layers take .* GiB are free: --gpu-layers 1 would fit$"):
        make(architecture, 2, Small(LAYER + OUTER + SLACK))
    with pytest.raises(BackendError, match="none fits: try a smaller --ctx-size, or --device cpu"):
        make(architecture, "all", Small(10))
    assert make(architecture, 1, Small(LAYER + OUTER + SLACK)).gpu_layers == 1


def test_auto_takes_what_fits(architecture: ModelSpec, caplog: pytest.LogCaptureFixture) -> None:
    for room, layers in ((2 * LAYER + OUTER + SLACK, 2), (LAYER + OUTER + SLACK, 1), (10, 0)):
        with caplog.at_level(logging.WARNING, "octavo"):
            assert make(architecture, "auto", Small(room)).gpu_layers == layers
    said = [r.getMessage() for r in caplog.records]
    assert said == [f"{n} of 2 layers fit the GPU's memory; the others run on the CPU" for n in (1, 0)]


def test_tables_of_adapters_take_room(architecture: ModelSpec) -> None:
    def layers(**more: int) -> int:
        config = EngineConfig(n_ctx=128, cache_type="f32", gpu_layers="auto", **more)  # type: ignore[arg-type]
        return Engine(architecture, [Small(2 * LAYER + OUTER + SLACK), Limited("second")], config).gpu_layers

    assert (layers(), layers(max_loras=1, max_lora_rank=1), layers(max_loras=64, max_lora_rank=256)) == (2, 2, 1)


def test_memory_that_runs_out_all_the_same_says_how_many_to_try(
    architecture: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensor: QTensor) -> None:
        raise DeviceMemoryError(f"device small: not enough memory for tensor {tensor.name}")

    first = Small(1 << 40)
    monkeypatch.setattr(first, "load", full)
    with pytest.raises(BackendError, match=r"not enough memory for tensor .*; --gpu-layers 1 would fit"):
        make(architecture, "all", first).load()


@pytest.mark.parametrize(("most", "limit"), [(0, 0), (1, 0), (1, 1), (7, 3), (8, 8), (80, 33)])
def test_last_true(most: int, limit: int) -> None:
    assert last_true(most, lambda n: n <= limit) == min(most, limit)


@pytest.mark.parametrize(
    ("device", "given", "asked", "layers"),
    [("auto", None, "gpu", "auto"), ("gpu", None, "gpu", "all"), ("cpu", None, "cpu", "all"),
     ("auto", 5, "gpu", 5), ("auto", "all", "gpu", "all"), ("auto", "auto", "gpu", "auto"),
     ("auto", -1, "gpu", "auto"), ("cpu", -1, "cpu", "all"),
     ("gpu", "auto", "gpu", "auto"),
     ("auto", 0, "cpu", "all"), ("gpu", 0, "cpu", "all"), ("reference", 0, "reference", "all")],
)
def test_which_device_a_number_of_layers_asks_for(
    monkeypatch: pytest.MonkeyPatch, device: str, given: object, asked: str, layers: object
) -> None:
    """Where there is one."""

    def select(device: str, threads: object, **more: object) -> list[Any]:
        return [SimpleNamespace(name="gpu" if device == "auto" else device)]

    monkeypatch.setattr("octavo.runtime.engine.placement.select", select)
    (backend,), found = backends_for(device, None, given)  # type: ignore[arg-type]
    assert (backend.name, found) == (asked, layers)


@pytest.mark.parametrize("given", [99, "all"])
def test_layers_for_a_gpu_run_on_the_cpu_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: Any
) -> None:
    monkeypatch.setattr("octavo.backends._gpu_usable", lambda: False)
    backends, layers = backends_for("auto", None, given)
    assert ([backend.name for backend in backends], layers) == (["cpu", "reference"], "all")
    assert f"gpu_layers is {given}, but there is no usable GPU: all layers run on the CPU" in caplog.text


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_layers_on_no_gpu(device: str, random_path: str) -> None:
    with pytest.raises(UsageError, match=rf"gpu_layers is 3 on device {device} \(allowed: 0, or device gpu or auto\)"):
        octavo.load(random_path, device=device, gpu_layers=3)


def test_no_layers_need_no_gpu(random_path: str) -> None:
    with octavo.load(random_path, device="gpu", gpu_layers=0) as model:
        assert [b.name for b in model.engine.backends] == ["cpu", "reference"]


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo import backends
    from octavo.backends import gpu
    from octavo.backends.gpu.device import torch_device

    monkeypatch.setattr(gpu, "GpuBackend", lambda *_: Limited("gpu"))
    monkeypatch.setattr(torch_device, "unusable", lambda: None)
    assert [b.name for b in backends.select("auto")] == ["gpu", "cpu", "reference"]
    monkeypatch.setattr(torch_device, "unusable", lambda: "device gpu: none")
    assert [b.name for b in backends.select("auto")] == ["cpu", "reference"]


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_attention_by_8_bit_products_needs_a_gpu(device: str) -> None:
    with pytest.raises(UsageError, match=rf"attention is int8 on device {device} \(allowed: exact, or a GPU\)"):
        octavo.load("demo", device=device, attention="int8")
    with pytest.raises(UsageError, match=r"attention is 'int4'.*allowed: exact, int8"):
        octavo.load("demo", device=device, attention="int4")  # type: ignore[arg-type]
