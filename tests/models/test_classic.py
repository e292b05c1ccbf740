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
from octavo.io.gguf import GGUFFile, PlainMetadata, write_gguf
from octavo.models import baichuan, read_model
from octavo.quantizers import quantize_checkpoint
from octavo.runtime import EngineConfig
from octavo.runtime.loading import model_of
from tests.convert.folders import edit
from tests.models import deci_layers, published_layouts
from tests.models.table import TOKENS, Models, error, logits, made_in, saved
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


@pytest.mark.parametrize("name", ["phi2", "chatglm"])
def test_one_matrix_for_q_k_and_v(name: str, models: Models, tmp_path: Path) -> None:
    """As the first converters wrote phi2, and as they write chatglm of its first form."""
    model, tensors = models[name], dict[str, np.ndarray | None]()
    for i in range(2):
        for part in ("weight", "bias"):
            names = [f"blk.{i}.attn_{n}.{part}" for n in "qkv"]
            tensors[f"blk.{i}.attn_qkv.{part}"] = np.concatenate([dequantize(model.file.tensor(n)) for n in names])
            tensors |= dict.fromkeys(names)
    with GGUFFile.open(rewritten(model.file, tmp_path / "m.gguf", {}, tensors)) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), model.want[: len(FEW)]) < 1e-4


def test_stablelm_says_little_with_its_key(models: Models, tmp_path: Path) -> None:
    model = models["stablelm"]
    path = rewritten(model.file, tmp_path / "m.gguf", {"use_parallel_residual": True}, {})
    with GGUFFile.open(path) as file:
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
    """They are kept in files, and not computed."""
    want, path = saved(tmp_path / "hf", TABLE["bailingmoe2"]), tmp_path / "hf" / "model.safetensors"
    tensors = load_file(path)
    last = {name.replace("layers.1.", "layers.2."): x.clone() for name, x in tensors.items() if ".layers.1." in name}
    norms = {f"model.layers.2.{name}.weight": torch.ones(128) for name in ("enorm", "hnorm", "final_layernorm")}
    save_file(tensors | last | norms | {"model.layers.2.eh_proj.weight": torch.ones(128, 256)}, path)
    edit(tmp_path / "hf", "config.json", num_nextn_predict_layers=1)
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert {"blk.2.nextn.eh_proj.weight", "blk.2.layer_output_norm.weight"} < set(file.tensors)
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_masks_and_older_words_of_pythia(tmp_path: Path) -> None:
    want, path = saved(tmp_path, TABLE["gptneox"]), tmp_path / "model.safetensors"
    masks = {"attention.bias": torch.ones(1, 1, 8, 8), "attention.masked_bias": torch.zeros(1)}
    save_file(load_file(path) | {f"gpt_neox.layers.0.{name}": x for name, x in masks.items()}, path)
    edit(tmp_path, "config.json", rope_parameters=None, rotary_pct=0.25, rotary_emb_base=10000)
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


UNWRITTEN = [
    "gpt2", "gptneox", "falcon", "internlm2", "apertus", "gemma3n", "chatglm-first", "deci", "bailingmoe", "bloom",
    "baichuan", "dbrx", "openelm", "plamo", "refact", "jais",
]  # fmt: skip


@pytest.mark.parametrize("name", UNWRITTEN)
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


def test_mpt_with_vectors_of_positions(models: Models, tmp_path: Path) -> None:
    """They are as much as embeddings that have them, where each token is at one position."""
    file, tokens = models["mpt"].file, list(range(7, 7 + len(FEW)))
    embedding = dequantize(file.tensor("token_embd.weight"))
    positions = np.random.default_rng(0).normal(0, 1, (256, embedding.shape[1])).astype(np.float32)
    placed, found = embedding.copy(), list[np.ndarray]()
    placed[tokens] += positions[: len(tokens)]
    for i, more in enumerate(({"position_embd.weight": positions}, {"token_embd.weight": placed})):
        path = rewritten(file, tmp_path / f"{i}.gguf", {}, {"output.weight": embedding, **more})
        with GGUFFile.open(path) as changed:
            found.append(logits(changed, ReferenceBackend(), tokens, at_once=False))
    assert error(*found) < 1e-6


@pytest.mark.parametrize(("layers", "alibi"), [(32, 0), (40, 8)])
def test_layers_of_baichuan_tell_of_rope(layers: int, alibi: float, models: Models) -> None:
    file = models["baichuan"].file
    keys = {k: file.metadata[k] for k in file.metadata if k != "baichuan.attention.max_alibi_bias"}
    shapes = {name: tuple(info.shape) for name, info in file.tensors.items()}
    found = baichuan.ARCH.read(PlainMetadata("m", keys | {"baichuan.block_count": layers}), "m", shapes)
    assert found.alibi == alibi


def test_rows_of_output_of_baichuan_2_are_normalized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its vocabulary tells that it is one."""
    saved(tmp_path, TABLE["baichuan"])
    with open_model_file(tmp_path) as file:
        first = dequantize(file.tensor("output.weight"))
    monkeypatch.setattr(baichuan, "SECOND_VOCABULARY", len(first))
    with open_model_file(tmp_path) as file:
        got = dequantize(file.tensor("output.weight"))
    assert error(got, torch.nn.functional.normalize(torch.tensor(first)).numpy()) < 1e-6


def test_context_of_qwen_ends_where_scores_would_change(models: Models) -> None:
    assert models["qwen"].file.metadata.get_int("qwen.context_length") == 256


def test_context_of_jais_ends_where_slopes_would_change(tmp_path: Path) -> None:
    saved(tmp_path, TABLE["jais"])
    edit(tmp_path, "config.json", alibi_scaling={"type": "linear", "train_seq_len": 100})
    with open_model_file(tmp_path) as file:
        assert file.metadata.get_int("jais.context_length") == 100


KEYS: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"context_length": 128}, "tensor position_embd.weight: shape"),
    ("gpt2", {"attention.layer_norm_epsilon": 2.0}, "layer_norm_epsilon: 2.0 is out of range"),
    ("phi2", {"rope.dimension_count": 63}, "dimension_count: 63 is out of range"),
    ("command-r", {"logit_scale": -1.0}, "logit_scale: -1.0 is out of range"),
    ("stablelm", {"attention.clamp_kqv": 1.0}, "clamp_kqv: is 1.0"),
    ("gptneox", {"use_parallel_residual": 2}, "use_parallel_residual"),
    ("falcon", {"attention.head_count_kv": 2}, "tensor blk.0.attn_qkv.weight: shape"),
    ("bailingmoe2", {"expert_group_count": 4}, "expert_group_count: 4 does not fit"),
    ("olmo", {"attention.clamp_kqv": -8.0}, "clamp_kqv: -8.0 is out of range"),
    ("starcoder", {"attention.head_count_kv": 2}, "tensor blk.0.attn_qkv.weight: shape"),
    ("internlm2", {"expert_count": 2}, "expert_count: 2 experts in internlm2"),
    ("chatglm", {"rope.dimension_count": 31}, "dimension_count: 31 is out of range"),
    ("deci", {"attention.head_count_kv": [2, 0, 2, 0, 1]}, "head_count_kv: 2 of layer 2 does not divide its 0 heads"),
    ("deci", {"attention.head_count": [2, 2, 0, 0]}, "head_count: has 4 values"),
    ("deci", {"feed_forward_length": [256, 512, 256, 256, 0]}, "tensor blk.3.ffn_norm.weight: is missing"),
    ("bailingmoe", {"leading_dense_block_count": 1}, "leading_dense_block_count: is 1"),
    ("bailingmoe", {"attention.q_lora_rank": 4}, "q_lora_rank: is a key that Octavo does not compute bailingmoe with"),
    ("mpt", {"attention.max_alibi_bias": 0.0}, "max_alibi_bias: is 0, and there is no tensor position_embd.weight"),
    ("mpt", {"attention.clamp_kqv": -1.0}, "clamp_kqv: -1.0 is out of range"),
    ("bloom", {"attention.max_alibi_bias": -8.0}, "max_alibi_bias: -8.0 is out of range"),
    ("bloom", {"attention.clamp_kqv": 2.0}, "clamp_kqv: is 2.0"),
    ("baichuan", {"attention.max_alibi_bias": None}, "block_count: 2 does not tell whether there is rope"),
    ("baichuan", {"attention.clamp_kqv": 2.0}, "clamp_kqv: is 2.0"),
    ("qwen", {"feed_forward_length": 193}, "feed_forward_length: 193 is odd"),
    ("gptj", {"rope.dimension_count": 7}, "dimension_count: 7 is out of range"),
    ("jais2", {"use_parallel_residual": True}, "use_parallel_residual: is True"),
    ("orion", {"attention.layer_norm_epsilon": 2.0}, "layer_norm_epsilon: 2.0 is out of range"),
    ("xverse", {"expert_count": 2}, "expert_count: 2 experts in xverse"),
    ("codeshell", {"attention.head_count_kv": 2}, "tensor blk.0.attn_qkv.weight: shape"),
    ("pangu-embedded", {"attention.scale": 2.0}, "attention.scale: is 2.0"),
    ("maincoder", {"logit_scale": 2.0}, "logit_scale: is 2.0"),
    ("smallthinker", {"expert_gating_func": 0}, "expert_gating_func: 0 does not fit"),
    ("smallthinker", {"attention.sliding_window_pattern": [True]}, "sliding_window_pattern: has 1 values"),
    ("dbrx", {"attention.clamp_kqv": -1.0}, "clamp_kqv: -1.0 is out of range"),
    ("dbrx", {"expert_weights_scale": 2.0}, "expert_weights_scale: is 2.0"),
    ("openelm", {"attention.head_count_kv": [1, 3, 2]}, "head_count_kv: 3 of layer 1 does not divide its 8 heads"),
    ("openelm", {"attention.head_count": [4, 0, 4]}, "head_count: 0 is out of range"),
    ("arctic", {"expert_weights_norm": False}, "expert_weights_norm: is False"),
    ("plamo", {"logit_scale": 2.0}, "logit_scale: is 2.0"),
    ("jais", {"attention.max_alibi_bias": -8.0}, "max_alibi_bias: -8.0 is out of range"),
    ("grovemoe", {"experts_per_group": 4}, "experts_per_group: 4 does not divide 6 experts"),
    ("grovemoe", {"expert_chunk_feed_forward_length": 0}, "expert_chunk_feed_forward_length: is 0"),
    ("grovemoe", {"expert_group_scale": -1.0}, "expert_group_scale: -1.0 is out of range"),
    ("plm", {"attention.q_lora_rank": 8}, "q_lora_rank: is 8"),
    ("plm", {"attention.kv_lora_rank": 47}, "kv_lora_rank: 47 does not fit"),
    ("jais", {"attention.scale": 0.5}, "attention.scale: is 0.5"),
    ("refact", {"attention.max_alibi_bias": 4.0}, "max_alibi_bias: is 4.0"),
    (
        "chatglm",
        {"rope.freq_base_swa": 50.0},
        "chatglm.rope.freq_base_swa: is a key that Octavo does not compute chatglm with",
    ),
]


@pytest.mark.parametrize(("name", "keys", "problem"), KEYS)
def test_keys_that_are_refused(
    name: str, keys: dict[str, Any], problem: str, models: Models, tmp_path: Path
) -> None:  # fmt: skip
    path = rewritten(models[name].file, tmp_path / "m.gguf", keys, {})
    with GGUFFile.open(path) as file, pytest.raises(OctavoError, match=problem):
        read_model(file)


WORDS: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: is true"),
    ("gpt2", {"activation_function": "relu"}, "hidden_act: is 'relu'"),
    ("phi2", {"qk_layernorm": True}, "qk_layernorm: is true"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm: is true"),
    ("command-r", {"use_qk_norm": True}, "use_qk_norm: is true"),
    ("command-r", {"attention_bias": True}, "attention_bias: is true"),
    ("gptneox", {"attention_bias": False}, "attention_bias: is false"),
    ("gptneox", {"hidden_act": "gelu_fast"}, "hidden_act: is 'gelu_fast'"),
    ("falcon", {"alibi": True}, "alibi: is true"),
    ("falcon", {"parallel_attn": False}, "parallel_attn: is false"),
    ("falcon", {"multi_query": False}, "multi_query: is false"),
    ("bailingmoe2", {"use_qkv_bias": True}, "use_qkv_bias: is true"),
    ("bailingmoe2", {"score_function": "softmax"}, "scoring_func: is 'softmax'"),
    ("bailingmoe2", {"moe_shared_expert_intermediate_size": 7}, "moe_shared_expert_intermediate_size: is '7'"),
    ("internlm2", {"bias": True}, "bias: is true"),
    ("starcoder", {"multi_query": False}, "multi_query: is false"),
    ("deepseek", {"scoring_func": "sigmoid"}, "scoring_func: is 'sigmoid'"),
    ("deepseek", {"moe_layer_freq": 2}, "moe_layer_freq: is '2'"),
    ("olmo", {"clip_qkv": -8.0}, "clip_qkv: is '-8.0'"),
    ("exaone", {"activation_function": "gelu"}, "hidden_act: is 'gelu'"),
    ("deci", {"block_configs": [{"attention": {"no_op": True}}] * 5}, r"block_configs\[0\].ffn: is missing"),
    ("deci", {"block_configs": [{"attention": {"window_length": 8}}] * 5}, r"attention.window_length: is '8'"),
    ("deci", {"block_configs": [{"attention": {"n_heads_in_group": 3}}] * 5}, r"n_heads_in_group: is '3'"),
    ("deci", {"block_configs": [{}]}, "block_configs: is no list of all layers"),
    ("bailingmoe", {"use_qkv_bias": True}, "use_qkv_bias: is true"),
    ("bailingmoe", {"first_k_dense_replace": 1}, "leading_dense_block_count: is 1"),
    ("mpt", {"attn_config": None}, "attn_config: is missing"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi: is 'False'"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln: is 'True'"),
    ("mpt", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale: is 'inv_sqrt_d_model'"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "post_layernorm: is true"),
    ("baichuan-distance", {"model_max_length": None}, "model_max_length: is missing"),
    ("qwen", {"rotary_pct": 0.5}, "rotary_pct: is '0.5'"),
    ("gptj", {"scale_attn_weights": False}, "scale_attn_weights: is false"),
    ("jais2", {"hidden_act": "gelu"}, "hidden_act: is 'gelu'"),
    ("orion", {"attention_bias": True}, "attention_bias: is true"),
    ("codeshell", {"position_embedding_type": "learned_absolute"}, "position_embedding_type: is 'learned_absolute'"),
    ("maincoder", {"use_qk_norm": False}, "use_qk_norm: is false"),
    ("smallthinker", {"rope_layout": [1, 1, 1]}, "rope_layout: is "),
    ("smallthinker", {"moe_layer_layout": [0, 1, 1]}, "moe_layer_layout: is "),
    ("smallthinker", {"moe_enable_early_router": False}, "moe_enable_early_router: is false"),
    ("dbrx", {"ffn_config": None}, "ffn_config: is missing"),
    ("dbrx", {"ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, "ffn_act_fn: is "),
    ("dbrx", {"ffn_config": {"moe_normalize_expert_weights": 2}}, "moe_normalize_expert_weights: is '2'"),
    ("openelm", {"num_query_heads": [4, 8]}, "num_query_heads: is "),
    ("openelm", {"share_input_output_layers": False}, "share_input_output_layers: is false"),
    ("openelm", {"ffn_multipliers": [1, 0, 1]}, "ffn_multipliers: is "),
    ("openelm", {"ffn_dim_divisor": 96}, r"blk.0.ffn_gate.weight.* contradicts .* \[192, 128\]"),
    ("arctic", {"moe_layer_frequency": 2}, "moe_layer_frequency: is '2'"),
    ("arctic", {"use_residual": False}, "use_residual: is false"),
    ("plamo", {"n_shared_head": 4}, "n_shared_head: is 4"),
    ("refact", {"multi_query": False}, "multi_query: is false"),
    ("jais", {"mup_scale_qk_dot_by_d": False}, "mup_scale_qk_dot_by_d: is false"),
    ("grovemoe", {"mlp_only_layers": [1]}, "mlp_only_layers: has dense layers"),
    ("plm", {"q_lora_rank": 8}, "q_lora_rank: is '8'"),
    ("plm", {"hidden_act": "silu"}, "hidden_act: is 'silu'"),
    ("jais", {"alibi_scaling": {"factor": 2.0}}, "alibi_scaling: is "),
    ("jais", {"alibi_scaling": {"type": "dynamic", "train_seq_len": 64}}, "alibi_scaling: is "),
    ("jais", {"position_embedding_type": "learned"}, "position_embedding_type: is 'learned'"),
    ("chatglm-first", {"rmsnorm": False}, "rmsnorm: is false"),
    ("chatglm-first", {"quantization_bit": 4}, "quantization_bit: is '4'"),
    ("chatglm-first", {"kv_channels": 32}, "query_key_value.weight: shape .* rows of q, k and v"),
]


@pytest.mark.parametrize(("name", "words", "problem"), WORDS)
def test_configurations_that_are_refused(name: str, words: dict[str, Any], problem: str, tmp_path: Path) -> None:
    saved(tmp_path, TABLE[name])
    edit(tmp_path, "config.json", **words)
    with pytest.raises(ModelError, match=problem):
        open_model_file(tmp_path)
