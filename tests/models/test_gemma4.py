"""Gemma 4 beyond the table: layers on two backends, pages of windows, what its GGUF files may have, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.cli.inspect.facts import cache_bytes
from octavo.errors import ModelError, OctavoError
from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from octavo.graph.node import Graph
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.io.safetensors import Checkpoint
from octavo.models import read_model
from octavo.quantizers import quantize_checkpoint, quantize_file
from octavo.runtime.cache.page_pool import page_bytes
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.convert.folders import edit
from tests.models.table import TOKENS, Models, error, logits, made_in, saved
from tests.models.tiny_checkpoints import TABLE

FEW = TOKENS[:24]
Rewrite = Callable[..., GGUFFile]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("gemma4")) as made:
        yield made


@pytest.fixture
def rewritten(tmp_path: Path) -> Iterator[Rewrite]:
    """A file with other keys (None: without) and tensors (None: without), opened."""
    with ExitStack() as stack:

        def rewrite(file: GGUFFile, keys: dict[str, Any] | None = None, **tensors: np.ndarray | None) -> GGUFFile:
            plain = by_name("F32")
            stored: dict[str, QTensor] = {n: file.tensor(n, copy=True) for n in file.tensors if n not in tensors}
            stored |= {n: quantize_reference(x, plain, n) for n, x in tensors.items() if x is not None}
            metadata = {key: file.metadata.typed(key) for key in file.metadata if key != "general.architecture"}
            metadata |= {f"gemma4.{key}": value for key, value in (keys or {}).items()}
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
            write_gguf(path, "gemma4", {k: v for k, v in metadata.items() if v is not None}, stored)
            return stack.enter_context(GGUFFile.open(path))

        yield rewrite


def test_layers_on_two_backends(models: Models) -> None:
    """Layers that read the cache of another attend where that is, so that no cache is copied."""
    config = EngineConfig(n_ctx=128, cache_type="f32", gpu_layers=2)
    engine = Engine(read_model(models["gemma4-e"].file), [ReferenceBackend(), ReferenceBackend()], config)
    copied = {n.shape[0] for n in engine.graph.nodes if n.op == "copy"}
    assert copied == {"tokens"}
    assert error(engine.logits(FEW), models["gemma4-e"].want[: len(FEW)]) < 1e-4


def test_long_contexts_have_pages_for_windows(models: Models, rewritten: Rewrite) -> None:
    model, config = models["gemma4-e"], EngineConfig(n_ctx=1 << 12, n_batch=16, cache_type="f32", strict=True)
    engine = Engine(read_model(rewritten(model.file, {"context_length": 1 << 12})), [ReferenceBackend()], config)
    assert engine.pool.windows is not None
    assert error(engine.logits(TOKENS), model.want) < 1e-4


def test_layers_that_read_another_cache_have_none(models: Models) -> None:
    spec = read_model(models["gemma4-e"].file)
    graph: Graph = spec.graph(cache_type="f16")
    names = {leaf.name for leaf in graph.leaves("cache")}
    assert names == {f"blk.{i}.cache_{kind}" for i in range(3) for kind in "kv"}
    assert cache_bytes(spec.hparams, 64, "f16") == page_bytes(graph)


def test_experts_in_one_tensor(models: Models, rewritten: Rewrite) -> None:
    """Gate and up of experts, one after the other as llama.cpp's converter writes them."""
    file = models["gemma4-moe"].file
    joined: dict[str, np.ndarray | None] = {}
    for i in range(6):
        gate, up = f"blk.{i}.ffn_gate_exps.weight", f"blk.{i}.ffn_up_exps.weight"
        both = np.concatenate([dequantize(file.tensor(name)) for name in (gate, up)], axis=1)
        joined |= {f"blk.{i}.ffn_gate_up_exps.weight": both, gate: None, up: None}
    got = logits(rewritten(file, **joined), ReferenceBackend(), FEW, at_once=True)
    assert error(got, models["gemma4-moe"].want[: len(FEW)]) < 1e-4


def test_the_scale_of_what_a_router_is_given_is_kept(models: Models, tmp_path: Path) -> None:
    """It is none of the router's products; that of experts is, and goes into their weights."""
    model = models["gemma4-moe"]
    quantize_file(model.file.path, tmp_path / "m.gguf", "F16")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert "blk.0.ffn_gate_inp.scale" in file.tensors
        assert "blk.0.ffn_down_exps.scale" not in file.tensors
        assert error(logits(file, ReferenceBackend(), FEW[:9], at_once=True), model.want[:9]) < 0.05


def test_experts_of_a_checkpoint_in_a_scheme(tmp_path: Path) -> None:
    """Each is a module of its own, with the factor that it had in its weights; the router's own scale is beside it."""
    case = TABLE["gemma4-moe"]
    saved(tmp_path / "hf", replace(case, options={**case.options, "moe_intermediate_size": 64}))
    quantize_checkpoint(tmp_path / "hf", tmp_path / "w8", "w8a16")
    with open_model_file(tmp_path / "hf") as was, open_model_file(tmp_path / "w8") as made:
        for name in ("ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_gate_inp.scale", "layer_output_scale.weight"):
            want, got = dequantize(was.tensor(f"blk.1.{name}")), dequantize(made.tensor(f"blk.1.{name}"))
            factor = dequantize(was.tensor("blk.1.ffn_down_exps.scale"))[:, None, None] if "down" in name else 1
            assert error(got, want * factor) < 0.005
    written = Checkpoint.open(tmp_path / "w8").tensors
    assert {"model.layers.1.layer_scalar", "model.layers.1.router.scale"} < set(written)


def test_projections_of_keys_that_are_not_used(models: Models, rewritten: Rewrite) -> None:
    """llama.cpp's converter keeps them where a checkpoint has them, as the published ones do."""
    model = models["gemma4-e"]
    unused = {f"blk.3.attn_{part}.weight": np.ones((64, 128), np.float32) for part in "kv"}
    file = rewritten(model.file, **unused, **{"blk.5.attn_k_norm.weight": np.ones(128, np.float32)})
    assert error(logits(file, ReferenceBackend(), FEW, at_once=True), model.want[: len(FEW)]) < 1e-4


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a pattern": ({"attention.sliding_window_pattern": 3}, "sliding_window_pattern: is missing or not an array"),
    "a window": ({"attention.sliding_window": None}, "attention.sliding_window': missing"),
    "heads of values": ({"attention.value_length_swa": 32}, "value_length_swa: 32 differs from the key length"),
    "turned values": ({"rope.dimension_count_swa": 63}, "dimension_count_swa: 63 is out of range"),
    "heads by layer": ({"attention.head_count_kv": [1, 1, 1, 1, 1, 3]}, "head_count_kv: 3 does not divide 2 heads"),
    "too few layers": ({"feed_forward_length": [96, 96]}, "feed_forward_length: has 2 values"),
    "no layer to read": ({"attention.shared_kv_layers": 4}, "shared_kv_layers: is 4, which leaves layers without one"),
    "all layers read": ({"attention.shared_kv_layers": 6}, "shared_kv_layers: 6 is out of range"),
}


@pytest.mark.parametrize("name", WRONG)
def test_keys_that_are_refused(name: str, models: Models, rewritten: Rewrite) -> None:
    keys, problem = WRONG[name]
    with pytest.raises(OctavoError, match=problem):
        read_model(rewritten(models["gemma4-e"].file, keys))


WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "looks ahead": ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention: is 'all'"),
    "no ropes": ({"rope_parameters": None}, "rope_parameters: is 'None'"),
    "a scaled rope": ({"rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2}}}, "has rope_type 'linear'"),
    "layers unlike": ({"per_layer_config": {"2": {"head_dim": 128}, "5": {"head_dim": 64}}}, "per_layer_config: is"),
    "other words": ({"per_layer_config": {str(i): {"sliding_window": 3} for i in (2, 5)}}, "per_layer_config: is"),
}


@pytest.mark.parametrize("name", WORDS)
def test_configurations_that_are_refused(name: str, tmp_path: Path) -> None:
    changes, problem = WORDS[name]
    saved(tmp_path, TABLE["gemma4"])
    edit(tmp_path, "config.json", **changes)
    with pytest.raises(ModelError, match=problem):
        open_model_file(tmp_path)


def test_the_older_words_of_sizes(tmp_path: Path) -> None:
    """As the published folders have them: sizes of layers without a window beside the others."""
    want = saved(tmp_path, TABLE["gemma4"])
    edit(tmp_path, "config.json", per_layer_config=None, global_head_dim=128, num_global_key_value_heads=1)
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4
