"""Newer architectures beyond the table: how else folders have their tensors, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.bitnet import pack_weights

from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError, OctavoError
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.models.shared.experts import N_DENSE
from tests.convert.folders import edit, save
from tests.models.table import TOKENIZER, TOKENS, Models, error, logits, made_in, saved
from tests.models.test_classic import rewritten
from tests.models.tiny_checkpoints import TABLE, wide
from tests.models.tiny_options import WINDOW

FEW = TOKENS[:24]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("newer")) as made:
        yield made


def test_experts_whose_outputs_are_columns(tmp_path: Path) -> None:
    """As published folders of Qwen3-VL have them; transformers writes rows of models that it makes."""
    want, path = saved(tmp_path, TABLE["qwen3vlmoe"]), tmp_path / "model.safetensors"
    tensors = load_file(path)
    moved = {name: x.transpose(1, 2).contiguous() for name, x in tensors.items() if ".experts." in name}
    assert moved
    save_file(tensors | moved, path)
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_older_files_of_gemma_name_its_gelu_as_if_it_were_the_other(tmp_path: Path) -> None:
    want = saved(tmp_path, TABLE["gemma"])
    edit(tmp_path, "config.json", hidden_act="gelu", hidden_activation=None)
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_layers_that_add_features_of_pictures_are_counted(models: Models) -> None:
    for name, count in (("qwen3vl", 1), ("qwen3vlmoe", 1)):
        assert models[name].file.metadata.get_int(f"{name}.n_deepstack_layers") == count


@pytest.mark.parametrize(("layers", "activation"), [(30, "relu2"), (26, "silu")])
def test_files_of_bitnet_that_do_not_say_their_activation(layers: int, activation: str, tmp_path: Path) -> None:
    """Those of 2B4T have 30 layers."""
    case = TABLE["bitnet"]
    small = {"num_hidden_layers": layers, "hidden_size": 64, "intermediate_size": 32, "hidden_act": activation}
    want = saved(tmp_path / "hf", replace(case, options=case.options | small))
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    with GGUFFile.open(tmp_path / "m.gguf") as made:
        assert made.metadata.get_str("bitnet.hidden_activation") == activation
        path = rewritten(made, tmp_path / "older.gguf", {"hidden_activation": None}, {})
    with GGUFFile.open(path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_files_of_minicpm_that_do_not_say_their_numbers(tmp_path: Path) -> None:
    """As the first converters wrote them: those of all models until then."""
    case = TABLE["minicpm"]
    usual = {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 2**0.5, "logits_scaling": 128 / 256}
    want = saved(tmp_path / "hf", replace(case, options=case.options | usual))
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    with GGUFFile.open(tmp_path / "m.gguf") as made:
        without = dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale"))
        path = rewritten(made, tmp_path / "older.gguf", without, {})
    with GGUFFile.open(path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_scores_of_deepseek2_that_grow_with_the_position(models: Models, tmp_path: Path) -> None:
    """As files of Mistral Large 3 have them, which is Mistral Small 4 under the older name."""
    file = models["mistral4"].file
    metadata = {key.replace("mistral4.", "deepseek2."): file.metadata.typed(key) for key in file.metadata}
    del metadata["general.architecture"]
    tensors = {name: file.tensor(name, copy=True) for name in file.tensors}
    write_gguf(tmp_path / "m.gguf", "deepseek2", metadata, tensors)
    with GGUFFile.open(tmp_path / "m.gguf") as other:
        assert other.metadata.get_float("deepseek2.attention.temperature_scale") > 0
        assert error(logits(other, ReferenceBackend(), TOKENS, at_once=True), models["mistral4"].want) < 1e-4


def test_files_of_mimo2_with_joined_matrices_and_layers_that_guess_tokens(models: Models, tmp_path: Path) -> None:
    """As converters write MiMo-V2.5: numbers for true and false, of the last layers, too."""
    model, tensors = models["mimo2"], dict[str, np.ndarray | None]()
    for i in range(3):
        names = [f"blk.{i}.attn_{n}.weight" for n in "qkv"]
        tensors |= dict.fromkeys(names)
        tensors[f"blk.{i}.attn_qkv.weight"] = np.concatenate([dequantize(model.file.tensor(n)) for n in names])
    tensors["blk.3.nextn.eh_proj.weight"] = np.zeros((128, 256), np.float32)
    keys = {
        "block_count": 4, "nextn_predict_layers": 1, "attention.head_count_kv": [1, 2, 2, 2],
        "attention.sliding_window_pattern": [0, 1, 1, 1],
    }
    with GGUFFile.open(rewritten(model.file, tmp_path / "m.gguf", keys, tensors)) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), model.want[: len(FEW)]) < 1e-4


def test_older_files_of_mimo2_do_not_say_the_scale_of_values(models: Models, tmp_path: Path) -> None:
    """Nor which layers are dense, which their tensors say."""
    model = models["mimo2"]
    path = rewritten(model.file, tmp_path / "m.gguf", {"attention.value_scale": None, N_DENSE: None}, {})
    with GGUFFile.open(path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), model.want[: len(FEW)]) < 1e-4


def test_folders_of_mimo2_in_the_words_of_its_authors(tmp_path: Path) -> None:
    want, words = saved(tmp_path, TABLE["mimo2"]), ("layer_types", "mlp_layer_types", "rope_parameters", "rms_norm_eps")
    edit(
        tmp_path, "config.json", **dict.fromkeys((*words, "sliding_window")), hybrid_layer_pattern=[0, 1, 1],
        moe_layer_freq=[0, 1, 1], swa_num_key_value_heads=2, swa_rope_theta=1e4, rope_theta=1e6,
        partial_rotary_factor=0.25, layernorm_epsilon=1e-5, sliding_window_size=WINDOW - 1, swa_head_dim=64,
        swa_v_head_dim=48, swa_num_attention_heads=2, n_shared_experts=None, routed_scaling_factor=None,
        scoring_func="sigmoid", topk_method="noaux_tc", add_swa_attention_sink_bias=True,
    )
    assert any(name.endswith("self_attn.attention_sink_bias") for name in load_file(tmp_path / "model.safetensors"))
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_folders_of_step_in_the_words_of_its_authors(tmp_path: Path) -> None:
    """As Step 3.5 Flash has them, with entries for a layer that guesses tokens."""
    want, path = saved(tmp_path, TABLE["step35"]), tmp_path / "model.safetensors"
    config = json.loads((tmp_path / "config.json").read_text())["text_config"]
    names = ("share_expert_dim", "sliding_window", "moe_intermediate_size", "hidden_size", "intermediate_size",
             "vocab_size", "num_hidden_layers", "head_dim", "rms_norm_eps", "max_position_embeddings")
    words = {key: config[key] for key in names} | {
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "num_attention_heads": 2,
        "num_attention_groups": 1, "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 3, "num_attention_groups": 1, "head_dim": 64},
        "layer_types": [*config["layer_types"], "sliding_attention"], "rope_theta": [1e6, 1e4, 1e6, 1e4],
        "partial_rotary_factors": [0.5, 1.0, 0.5, 1.0], "moe_layers_enum": "1,2", "moe_num_experts": 6, "moe_top_k": 2,
        "moe_router_activation": "sigmoid", "moe_router_scaling_factor": 1.5, "norm_expert_weight": True,
        "use_head_wise_attn_gate": True, "swiglu_limits": [0.0, 0.0, 0.5, 0.0], "num_nextn_predict_layers": 1,
        "swiglu_limits_shared": [0.3, 0.4, None, None],
    }
    (tmp_path / "config.json").write_text(json.dumps(words))
    text = {name: x for name, x in load_file(path).items() if "vision" not in name and "vit_" not in name}
    assert any(name.endswith("moe.router_bias") for name in text)
    last = {"enorm.weight": torch.zeros(128), "transformer.shared_head.norm.weight": torch.zeros(128),
            "transformer.shared_head.output.weight": torch.zeros(320, 128),
            "self_attn.q_proj.weight": torch.zeros(192, 128)}
    save_file(text | {f"model.layers.3.{name}": x for name, x in last.items()}, path)
    convert_checkpoint(tmp_path, tmp_path / "m.gguf", "F32")
    for opened in (tmp_path, tmp_path / "m.gguf"):
        with open_model_file(opened) as file:
            assert file.metadata.get_ints("step35.attention.head_count").tolist() == [2, 3, 2, 3]
            assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def absmean(w: torch.Tensor) -> torch.Tensor:
    """What the paper rounds weights to: -1, 0 and 1 times their mean magnitude."""
    scale = w.abs().mean()
    return (w / scale).round().clamp(-1, 1) * scale


@pytest.mark.parametrize("kind", ["small online", "wide online", "small", "wide"])
def test_folders_of_bitnet_with_ternary_weights(kind: str, tmp_path: Path) -> None:
    """Rounded when they are loaded, or packed; rows of 256 values have TQ2_0."""
    case = TABLE["bitnet"]
    model = save(tmp_path, replace(case, options=wide(case.options)) if "wide" in kind else case, tokenizer=TOKENIZER)
    path, stored = tmp_path / "model.safetensors", {}
    for name, w in model.named_parameters():
        if name.endswith("_proj.weight"):
            w.data = absmean(w.data)
            scale = w.data.abs().max().reshape(1)
            stored |= {name: pack_weights((w.data / scale).round()), f"{name}_scale": scale}
    if "online" not in kind:
        save_file(load_file(path) | stored, path)
    edit(tmp_path, "config.json", quantization_config={
        "quant_method": "bitnet", "linear_class": "autobitlinear", "modules_to_not_convert": ["lm_head"],
        "quantization_mode": "online" if "online" in kind else "offline"})
    with torch.no_grad():
        want = model(torch.tensor([FEW])).logits[0].numpy()
    with open_model_file(tmp_path) as file:
        assert file.tensors["blk.1.ffn_down.weight"].type_name == ("TQ2_0" if "wide" in kind else "GROUP2_32_F32")
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want) < 1e-4


KEYS: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2vl", {"rope.dimension_sections": [8, 8, 8, 0]}, r"dimension_sections: \[8, 8, 8, 0\] does not fit"),
    ("qwen2vl", {"rope.dimension_sections": None}, "rope.dimension_sections"),
    ("qwen2vl", {"n_deepstack_layers": 1}, "n_deepstack_layers"),
    ("qwen3vl", {"rope.dimension_sections": [40, -8, 0, 0]}, r"dimension_sections: \[40, -8, 0, 0\] does not fit"),
    ("qwen3vl", {"n_deepstack_layers": 3}, "n_deepstack_layers: 3 is out of range"),
    ("qwen3vlmoe", {"n_deepstack_layers": -1}, "n_deepstack_layers: -1 is out of range"),
    ("qwen3vlmoe", {"expert_weights_norm": False}, "expert_weights_norm: is False"),
    ("gemma", {"attention.scale": 0.1}, "attention.scale: is 0.1"),
    ("gemma", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: is 50.0"),
    ("bitnet", {"hidden_activation": "gelu"}, "hidden_activation: is 'gelu'"),
    ("bitnet", {"expert_count": 2}, "expert_count: 2 experts in bitnet"),
    ("minicpm", {"residual_scale": -1.0}, "residual_scale: -1.0 is out of range"),
    ("minicpm", {"attention.scale": 0.1}, "attention.scale: is 0.1"),
    ("minicpm", {"expert_count": 2}, "expert_used_count.: missing"),
    ("step35", {"swiglu_clamp_exp": [0.0, 1.0]}, "swiglu_clamp_exp: has 2 values"),
    ("step35", {"swiglu_clamp_shexp": [0.0, -1.0, 0.0]}, "swiglu_clamp_shexp: has -1.0"),
    ("step35", {"moe_every_n_layers": 2}, "moe_every_n_layers: is 2"),
    ("step35", {"rope.dimension_count": 62}, "dimension_count: 62 is out of range"),
    ("step35", {"attention.head_count": [2, 3]}, "head_count: has 2 values"),
    ("step35", {"attention.head_count_kv": [1, 2, 1]}, "head_count_kv"),
    ("mimo2", {"attention.value_length": 65}, "value_length: 65 is out of range"),
    ("mimo2", {"attention.sliding_window_pattern": [0, 1, 2]}, "sliding_window_pattern: has a 2"),
    ("mimo2", {"attention.sliding_window_pattern": 6}, "sliding_window_pattern: is missing or not an array"),
    ("mimo2", {"attention.head_count_kv": [1, 2]}, "head_count_kv: has 2 values"),
    ("mimo2", {"attention.value_scale": -1.0}, "value_scale: -1.0"),
    ("phimoe", {"expert_used_count": 1}, "expert_used_count: 1 is out of range"),
    ("phimoe", {"expert_weights_scale": 2.0}, "expert_weights_scale: is 2.0"),
    ("exaone-moe", {"attention.sliding_window_pattern": [True]}, "sliding_window_pattern: has 1 values"),
    ("exaone-moe", {"expert_group_count": 4}, "expert_group_count: 4 does not fit"),
    ("exaone-moe", {"nextn_predict_layers": 2}, "nextn_predict_layers: 2 is out of range"),
    ("mistral4", {"attention.temperature_scale": -0.1}, "temperature_scale: -0.1"),
    ("mistral4", {"attention.temperature_length": -1}, "temperature_length: -1 is out of range"),
    ("mistral4", {"expert_gating_func": 3}, "expert_gating_func: 3 does not fit"),
]


@pytest.mark.parametrize(("name", "keys", "problem"), KEYS)
def test_keys_that_are_refused(
    name: str, keys: dict[str, Any], problem: str, models: Models, tmp_path: Path
) -> None:
    path = rewritten(models[name].file, tmp_path / "m.gguf", keys, {})
    with GGUFFile.open(path) as file, pytest.raises(OctavoError, match=problem):
        read_model(file)


WORDS: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2vl", {"text_config": {"rope_parameters": {"rope_theta": 1e4}}}, "mrope_section: is missing"),
    ("qwen3vl", {"vision_config": {"deepstack_visual_indexes": [1.5]}}, "deepstack_visual_indexes: is "),
    ("qwen3vl", {"vision_config": {"deepstack_visual_indexes": [0, 1, 1]}}, "n_deepstack_layers: 3 is out of range"),
    ("qwen3vl", {"text_config": {"rope_parameters": {"mrope_section": [9, 9, 9]}}}, "dimension_sections: .9, 9, 9, 0."),
    ("qwen3vlmoe", {"text_config": {"norm_topk_prob": False}}, "norm_topk_prob: is false"),
    ("qwen3vlmoe", {"text_config": {"mlp_only_layers": [0]}}, "mlp_only_layers: has dense layers"),
    ("gemma", {"hidden_act": "gelu_fast"}, "hidden_act: is 'gelu_fast'"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention: is true"),
    ("bitnet", {"hidden_act": "gelu"}, "hidden_act: is 'gelu'"),
    ("bitnet", {"attention_bias": True}, "attention_bias: is true"),
    ("minicpm", {"num_experts": 8}, "num_experts_per_tok: is missing"),
    ("minicpm", {"sparse_config": {"topk": 64}}, "sparse_config: is "),
    ("minicpm", {"dim_model_base": 0}, "dim_model_base: is '0'"),
    ("step35", {"text_config": {"mlp_bias": True}}, "mlp_bias: is true"),
    ("step35", {"text_config": {"query_pre_attn_scalar": 32}}, "query_pre_attn_scalar: is '32'"),
    ("step35", {"text_config": {"swiglu_limits": [-1, 0, 0]}}, "swiglu_limits: is "),
    ("step35", {"text_config": {"layer_types": ["full_attention"]}}, "layer_types: is "),
    ("step35", {"text_config": {"moe_layers_enum": "1,x"}}, "moe_layers_enum: is '1,x'"),
    (
        "step35",
        {"text_config": {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}},
        "partial_rotary_factor: is '1.0' of full_attention",
    ),
    ("mimo2", {"swa_head_dim": 32}, "swa_head_dim: is '32'"),
    ("mimo2", {"hybrid_layer_pattern": [0, 1, 7]}, "hybrid_layer_pattern: is "),
    ("mimo2", {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias: is true"),
    (
        "mimo2",
        {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}},
        "partial_rotary_factor: differs",
    ),
    ("phimoe", {"router_jitter_noise": 0.1}, "router_jitter_noise: is '0.1'"),
    ("phimoe", {"num_experts_per_tok": 1}, "num_experts_per_tok: is '1'"),
    ("phimoe-long", {"rope_parameters": {"short_mscale": 1.0}}, "short_mscale: is 1.0"),
    ("exaone-moe", {"scoring_func": "softmax"}, "scoring_func: is 'softmax'"),
    ("exaone-moe", {"mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types: is "),
    ("mistral4", {"n_group": 2}, "n_group: is '2'"),
    ("mistral4", {"rope_interleave": False}, "rope_interleave: is false"),
    ("mistral4", {"rope_parameters": {"mscale": 0.5}}, "mscale: is '0.5'"),
    ("mistral4", {"rope_parameters": {"original_max_position_embeddings": 0}}, "original_max_position_embeddings: is"),
]


@pytest.mark.few(12)
@pytest.mark.parametrize(("name", "words", "problem"), WORDS)
def test_configurations_that_are_refused(name: str, words: dict[str, Any], problem: str, tmp_path: Path) -> None:
    saved(tmp_path, TABLE[name])
    with open_model_file(tmp_path) as file:
        assert file.metadata.get_str("general.architecture") == TABLE[name].arch
    edit(tmp_path, "config.json", **nested(tmp_path, words))
    with pytest.raises(ModelError, match=problem):
        open_model_file(tmp_path)


def nested(folder: Path, words: dict[str, Any]) -> dict[str, Any]:
    """Words of config.json, of its objects those that are to change among the others."""
    config = json.loads((folder / "config.json").read_text())
    return {key: config.get(key, {}) | value if isinstance(value, dict) else value for key, value in words.items()}
