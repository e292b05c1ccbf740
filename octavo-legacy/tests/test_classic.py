"""Architectures beyond the table: how else files and folders have their tensors, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from legacy_cases import CASES as TABLE
from octavo.backends.reference import ReferenceBackend
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, PlainMetadata
from octavo_legacy import baichuan
from tests.convert.folders import edit
from tests.models import test_classic as classic
from tests.models.table import Models, error, logits, made_in, saved
from tests.models.test_classic import FEW, rewritten


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("classic")) as made:
        yield made


def test_one_matrix_for_q_k_and_v(models: Models, tmp_path: Path) -> None:
    """As converters write chatglm of its first form."""
    classic.test_one_matrix_for_q_k_and_v("chatglm", models, tmp_path)


def test_stablelm_says_little_with_its_key(models: Models, tmp_path: Path) -> None:
    model = models["stablelm"]
    path = rewritten(model.file, tmp_path / "m.gguf", {"use_parallel_residual": True}, {})
    with GGUFFile.open(path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), model.want[: len(FEW)]) < 1e-4


def test_masks_and_older_words_of_pythia(tmp_path: Path) -> None:
    want, path = saved(tmp_path, TABLE["gptneox"]), tmp_path / "model.safetensors"
    masks = {"attention.bias": torch.ones(1, 1, 8, 8), "attention.masked_bias": torch.zeros(1)}
    save_file(load_file(path) | {f"gpt_neox.layers.0.{name}": x for name, x in masks.items()}, path)
    edit(tmp_path, "config.json", rope_parameters=None, rotary_pct=0.25, rotary_emb_base=10000)
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


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


@pytest.mark.parametrize("name", [
    "gptneox", "falcon", "internlm2", "chatglm-first", "bloom", "baichuan", "dbrx", "openelm", "plamo",
    "refact", "jais",
])
def test_what_checkpoints_have_otherwise_is_not_written(name: str, tmp_path: Path) -> None:
    classic.test_what_checkpoints_have_otherwise_is_not_written(name, tmp_path)


KEYS: list[tuple[str, dict[str, Any], str]] = [
    ("stablelm", {"attention.clamp_kqv": 1.0}, "clamp_kqv: is 1.0"),
    ("gptneox", {"use_parallel_residual": 2}, "use_parallel_residual"),
    ("falcon", {"attention.head_count_kv": 2}, "tensor blk.0.attn_qkv.weight: shape"),
    ("olmo", {"attention.clamp_kqv": -8.0}, "clamp_kqv: -8.0 is out of range"),
    ("starcoder", {"attention.head_count_kv": 2}, "tensor blk.0.attn_qkv.weight: shape"),
    ("internlm2", {"expert_count": 2}, "expert_count: 2 experts in internlm2"),
    ("chatglm", {"rope.dimension_count": 31}, "dimension_count: 31 is out of range"),
    ("mpt", {"attention.max_alibi_bias": 0.0}, "max_alibi_bias: is 0, and there is no tensor position_embd.weight"),
    ("mpt", {"attention.clamp_kqv": -1.0}, "clamp_kqv: -1.0 is out of range"),
    ("bloom", {"attention.max_alibi_bias": -8.0}, "max_alibi_bias: -8.0 is out of range"),
    ("bloom", {"attention.clamp_kqv": 2.0}, "clamp_kqv: is 2.0"),
    ("baichuan", {"attention.max_alibi_bias": None}, "block_count: 2 does not tell whether there is rope"),
    ("baichuan", {"attention.clamp_kqv": 2.0}, "clamp_kqv: is 2.0"),
    ("qwen", {"feed_forward_length": 193}, "feed_forward_length: 193 is odd"),
    ("gptj", {"rope.dimension_count": 7}, "dimension_count: 7 is out of range"),
    ("orion", {"attention.layer_norm_epsilon": 2.0}, "layer_norm_epsilon: 2.0 is out of range"),
    ("xverse", {"expert_count": 2}, "expert_count: 2 experts in xverse"),
    ("codeshell", {"attention.head_count_kv": 2}, "tensor blk.0.attn_qkv.weight: shape"),
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
    ("grovemoe", {"expert_chunk_feed_forward_length": 0}, "expert_chunk_feed_forward_length: 0 is out of range"),
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
    ("minicpm3", {"attention.kv_lora_rank": 47}, "attention.kv_lora_rank: 47 does not fit"),
    ("minicpm3", {"embedding_scale": 6.0}, "embedding_scale: is 6.0"),
    ("minicpm3", {"attention.head_count_kv": 2}, "kv_lora_rank: 48 does not fit"),
]


@pytest.mark.parametrize(("name", "keys", "problem"), KEYS)
def test_keys_that_are_refused(
    name: str, keys: dict[str, Any], problem: str, models: Models, tmp_path: Path
) -> None:
    classic.test_keys_that_are_refused(name, keys, problem, models, tmp_path)


WORDS: list[tuple[str, dict[str, Any], str]] = [
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm: is true"),
    ("gptneox", {"attention_bias": False}, "attention_bias: is false"),
    ("gptneox", {"hidden_act": "gelu_fast"}, "hidden_act: is 'gelu_fast'"),
    ("falcon", {"alibi": True}, "alibi: is true"),
    ("falcon", {"parallel_attn": False}, "parallel_attn: is false"),
    ("falcon", {"multi_query": False}, "multi_query: is false"),
    ("internlm2", {"bias": True}, "bias: is true"),
    ("starcoder", {"multi_query": False}, "multi_query: is false"),
    ("deepseek", {"scoring_func": "sigmoid"}, "scoring_func: is 'sigmoid'"),
    ("deepseek", {"moe_layer_freq": 2}, "moe_layer_freq: is '2'"),
    ("olmo", {"clip_qkv": -8.0}, "clip_qkv: is '-8.0'"),
    ("mpt", {"attn_config": None}, "attn_config: is missing"),
    ("mpt", {"attn_config": {"alibi": False}}, "alibi: is false"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln: is true"),
    ("mpt", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale: is 'inv_sqrt_d_model'"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "post_layernorm: is true"),
    ("baichuan-distance", {"model_max_length": None}, "model_max_length: is missing"),
    ("qwen", {"rotary_pct": 0.5}, "rotary_pct: is '0.5'"),
    ("gptj", {"scale_attn_weights": False}, "scale_attn_weights: is false"),
    ("orion", {"attention_bias": True}, "attention_bias: is true"),
    ("codeshell", {"position_embedding_type": "learned_absolute"}, "position_embedding_type: is 'learned_absolute'"),
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
    ("minicpm3", {"scale_depth": 1.0}, "scale_depth: is '1.0'"),
    ("minicpm3", {"attention_bias": True}, "attention_bias: is true"),
]


@pytest.mark.parametrize(("name", "words", "problem"), WORDS)
def test_configurations_that_are_refused(name: str, words: dict[str, Any], problem: str, tmp_path: Path) -> None:
    classic.test_configurations_that_are_refused(name, words, problem, tmp_path)
