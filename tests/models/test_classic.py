"""Older architectures beyond the table: how else files and folders have their tensors, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError, OctavoError, UsageError
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.quantizers import quantize_checkpoint
from octavo.runtime import EngineConfig
from octavo.runtime.loading import model_of
from tests.convert.folders import edit
from tests.models import deci_layers, published_layouts
from tests.models.table import TOKENS, Models, error, logits, made_in, saved
from tests.models.test_nextn import guesses
from tests.models.tiny_checkpoints import TABLE

FEW = TOKENS[:24]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("classic")) as made:
        yield made


def rewritten(file: GGUFFile, path: Path, keys: dict[str, Any], tensors: dict[str, np.ndarray | None]) -> Path:
    """A file with other keys (None: without) and tensors (None: without)."""
    arch = file.metadata.get_str("general.architecture")
    metadata = {key: file.metadata.typed(key) for key in file.metadata if key != "general.architecture"}
    metadata |= {f"{arch}.{key}": value for key, value in keys.items()}
    stored = {n: file.tensor(n, copy=True) for n in file.tensors if n not in tensors}
    stored |= {n: quantize_reference(x, by_name("F32"), n) for n, x in tensors.items() if x is not None}
    write_gguf(path, arch, {key: value for key, value in metadata.items() if value is not None}, stored)
    return path


@pytest.mark.parametrize("name", ["phi2"])
def test_one_matrix_for_q_k_and_v(name: str, models: Models, tmp_path: Path) -> None:
    """As the first converters wrote phi2."""
    model, tensors = models[name], dict[str, np.ndarray | None]()
    for i in range(2):
        for part in ("weight", "bias"):
            names = [f"blk.{i}.attn_{n}.{part}" for n in "qkv"]
            tensors[f"blk.{i}.attn_qkv.{part}"] = np.concatenate([dequantize(model.file.tensor(n)) for n in names])
            tensors |= dict.fromkeys(names)
    with GGUFFile.open(rewritten(model.file, tmp_path / "m.gguf", {}, tensors)) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), model.want[: len(FEW)]) < 1e-4


def test_masks_of_gpt2_are_left_out(tmp_path: Path) -> None:
    """Published checkpoints have them, and names without what newer ones begin with."""
    want, path = saved(tmp_path, TABLE["gpt2"]), tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): x for name, x in load_file(path).items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.1.attn.masked_bias": torch.zeros(1)}
    save_file(tensors | masks, path)
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_layers_of_ling_that_guess_tokens(tmp_path: Path) -> None:
    """They are kept in files, and draft."""
    want, path = saved(tmp_path / "hf", TABLE["bailingmoe2"]), tmp_path / "hf" / "model.safetensors"
    tensors = load_file(path)
    last = {name.replace("layers.1.", "layers.2."): x.clone() for name, x in tensors.items() if ".layers.1." in name}
    norms = {f"model.layers.2.{name}.weight": torch.ones(128) for name in ("enorm", "hnorm", "final_layernorm")}
    save_file(tensors | last | norms | {"model.layers.2.eh_proj.weight": torch.randn(128, 256)}, path)
    edit(tmp_path / "hf", "config.json", num_nextn_predict_layers=1)
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert {"blk.2.nextn.eh_proj.weight", "blk.2.layer_output_norm.weight"} < set(file.tensors)
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4
        guesses(read_model(file))


@pytest.mark.parametrize("name", ["gpt2", "apertus", "gemma3n", "deci", "bailingmoe"])
def test_what_checkpoints_have_otherwise_is_not_written(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "hf", TABLE[name])
    with pytest.raises(UsageError, match="has no place in a checkpoint"):
        quantize_checkpoint(tmp_path / "hf", tmp_path / "w8", "w8a16")
    assert not (tmp_path / "w8").exists()


def test_layers_of_llama_nemotron_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose heads of keys differ, without one that has a matrix in place of attention."""
    blocks = [deci_layers.BLOCKS[i] for i in (0, 2, 4)]
    for module in (deci_layers, published_layouts):
        monkeypatch.setattr(module, "BLOCKS", blocks)
    case = TABLE["deci"]
    want = saved(tmp_path / "hf", replace(case, options=case.options | {"num_hidden_layers": 3}))
    quantize_checkpoint(tmp_path / "hf", tmp_path / "w8", "w8a16")
    with open_model_file(tmp_path / "hf") as file, open_model_file(tmp_path / "w8") as written:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4
        for name in file.tensors:
            before, after = (dequantize(one.tensor(name)) for one in (file, written))
            np.testing.assert_allclose(after, before, atol=0.01 * np.abs(before).max())


def test_gpt2_has_no_positions_beyond_those_it_learned(models: Models) -> None:
    with GGUFFile.open(models["gpt2"].file.path) as file, pytest.raises(OctavoError, match="made for 256 tokens"):
        model_of(file, [ReferenceBackend()], EngineConfig(n_ctx=257, cache_type="f32"))


KEYS: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"context_length": 128}, "tensor position_embd.weight: shape"),
    ("gpt2", {"attention.layer_norm_epsilon": 2.0}, "layer_norm_epsilon: 2.0 is out of range"),
    ("phi2", {"rope.dimension_count": 63}, "dimension_count: 63 is out of range"),
    ("command-r", {"logit_scale": -1.0}, "logit_scale: -1.0 is out of range"),
    ("bailingmoe2", {"expert_group_count": 4}, "expert_group_count: 4 does not fit"),
    ("deci", {"attention.head_count_kv": [2, 0, 2, 0, 1]}, "head_count_kv: 2 of layer 2 does not divide its 0 heads"),
    ("deci", {"attention.head_count": [2, 2, 0, 0]}, "head_count: has 4 values"),
    ("deci", {"feed_forward_length": [256, 512, 256, 256, 0]}, "tensor blk.3.ffn_norm.weight: is missing"),
    ("bailingmoe", {"leading_dense_block_count": 1}, "leading_dense_block_count: is 1"),
    ("bailingmoe", {"attention.q_lora_rank": 4}, "q_lora_rank: is a key that Octavo does not compute bailingmoe with"),
    ("jais2", {"use_parallel_residual": True}, "use_parallel_residual: is True"),
    ("pangu-embedded", {"attention.scale": 2.0}, "attention.scale: is 2.0"),
    ("maincoder", {"logit_scale": 2.0}, "logit_scale: is 2.0"),
]


@pytest.mark.parametrize(("name", "keys", "problem"), KEYS)
def test_keys_that_are_refused(
    name: str, keys: dict[str, Any], problem: str, models: Models, tmp_path: Path
) -> None:
    path = rewritten(models[name].file, tmp_path / "m.gguf", keys, {})
    with GGUFFile.open(path) as file, pytest.raises(OctavoError, match=problem):
        read_model(file)


WORDS: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: is true"),
    ("gpt2", {"activation_function": "relu"}, "hidden_act: is 'relu'"),
    ("phi2", {"qk_layernorm": True}, "qk_layernorm: is true"),
    ("command-r", {"use_qk_norm": True}, "use_qk_norm: is true"),
    ("command-r", {"attention_bias": True}, "attention_bias: is true"),
    ("bailingmoe2", {"use_qkv_bias": True}, "use_qkv_bias: is true"),
    ("bailingmoe2", {"score_function": "softmax"}, "scoring_func: is 'softmax'"),
    ("bailingmoe2", {"moe_shared_expert_intermediate_size": 7}, "moe_shared_expert_intermediate_size: is '7'"),
    ("exaone", {"activation_function": "gelu"}, "hidden_act: is 'gelu'"),
    ("deci", {"block_configs": [{"attention": {"no_op": True}}] * 5}, r"block_configs\[0\].ffn: is missing"),
    ("deci", {"block_configs": [{"attention": {"window_length": 8}}] * 5}, r"attention.window_length: is '8'"),
    ("deci", {"block_configs": [{"attention": {"n_heads_in_group": 3}}] * 5}, r"n_heads_in_group: is '3'"),
    ("deci", {"block_configs": [{}]}, "block_configs: is not a list of all layers"),
    ("bailingmoe", {"use_qkv_bias": True}, "use_qkv_bias: is true"),
    ("bailingmoe", {"first_k_dense_replace": 1}, "leading_dense_block_count: is 1"),
    ("jais2", {"hidden_act": "gelu"}, "hidden_act: is 'gelu'"),
    ("maincoder", {"use_qk_norm": False}, "use_qk_norm: is false"),
]


@pytest.mark.parametrize(("name", "words", "problem"), WORDS)
def test_configurations_that_are_refused(name: str, words: dict[str, Any], problem: str, tmp_path: Path) -> None:
    saved(tmp_path, TABLE[name])
    edit(tmp_path, "config.json", **words)
    with pytest.raises(ModelError, match=problem):
        open_model_file(tmp_path)
