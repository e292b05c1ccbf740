"""Models of which some layers have states: layers that guess tokens, older words, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.backends.reference import ReferenceBackend
from octavo.cli.inspect.facts import facts, lines
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.formats import by_name, channel_format, dequantize, group_format, quantize_reference
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, LazyTensor, write_gguf
from octavo.models import read_model
from octavo.models.shared.conversion import multiplied
from octavo.models.shared.experts import SHARED_WIDTH
from tests.convert import folders
from tests.models.table import TOKENS, error, logits, save_only, saved
from tests.models.test_hostile import refused
from tests.models.tiny_checkpoints import TABLE

FEW = TOKENS[:20]


def written(folder: Path, path: Path, name: str, keys: dict[str, Any], tensors: dict[str, Any] | None = None) -> str:
    """A GGUF file of a case with other keys, those that are None left out, and more tensors."""
    save_only(folder, TABLE[name])
    with open_model_file(folder) as file:
        arch = file.metadata.get_str("general.architecture")
        values = {key: file.metadata[key] for key in file.metadata if key != "general.architecture"}
        values |= {f"{arch}.{key}": value for key, value in keys.items()}
        stored = {n: dequantize(file.tensor(n)) for n in file.tensors} | (tensors or {})
        write_gguf(path, arch, {key: value for key, value in values.items() if value is not None}, stored)
    return str(path)


def test_layers_that_guess_tokens_are_left_out(tmp_path: Path) -> None:
    """They are counted among the layers, and have attention whatever the interval says."""
    rng, width = np.random.default_rng(0), TABLE["qwen35"].options["hidden_size"]
    saved(tmp_path / "hf", TABLE["qwen35"])
    with open_model_file(tmp_path / "hf") as file:
        plain = logits(file, ReferenceBackend(), FEW, at_once=True)
        extra = {n.replace("blk.1.", "blk.3."): dequantize(file.tensor(n)) for n in file.tensors if "blk.1." in n}
    extra["blk.3.nextn.eh_proj.weight"] = rng.standard_normal((width, 2 * width)).astype(np.float32)
    extra |= {f"blk.3.nextn.{n}.weight": np.ones(width, np.float32) for n in ("enorm", "hnorm", "shared_head_norm")}
    recurrent = {"attention.recurrent_layers": [True, False, True, False]}
    keys: dict[str, Any] = {"block_count": 4, "nextn_predict_layers": 1, **recurrent}
    with GGUFFile.open(written(tmp_path / "hf", tmp_path / "m.gguf", "qwen35", keys, extra)) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), plain) < 1e-5


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("qwen35", {"attention.recurrent_layers": [True, False]}, "recurrent_layers", "has 2 values"),
    ("qwen35", {"attention.recurrent_layers": None, "full_attention_interval": 0}, "full_attention_interval", "0 is"),
    ("qwen35", {"ssm.conv_kernel": 1}, "ssm.conv_kernel", "1 is out of range"),
    ("qwen35", {"ssm.group_count": 3}, "ssm.time_step_rank", "a multiple of key heads"),
    ("qwen35", {"ssm.inner_size": 130}, "ssm.inner_size", "a multiple of heads"),
    ("qwen35", {"ssm.state_size": 16}, "tensor blk.0.attn_qkv.weight", "contradicts the hyperparameters"),
    ("kimi-linear", {"attention.head_count_kv": [0, 1]}, "attention.head_count_kv", "has 2 values"),
    ("kimi-linear", {"attention.head_count_kv": [0, 2, 0]}, "attention.kv_lora_rank", "does not fit"),
    ("kimi-linear", {"ssm.conv_kernel": 1}, "ssm.conv_kernel", "1 is out of range"),
    ("kimi-linear", {"kda.head_dim": 0}, "kda.head_dim", "0 is out of range"),
    ("kimi-linear", {"kda.head_dim": 48}, "tensor blk.0.attn_q.weight", "contradicts the hyperparameters"),
    ("kimi-linear", {"attention.kv_lora_rank": 47}, "attention.kv_lora_rank", "does not fit"),
    ("kimi-linear", {"expert_gating_func": 5}, "expert_gating_func", "5 does not fit"),
    ("kimi-linear", {"moe_latent_size": 64}, "moe_latent_size", "does not compute"),
    ("kimi-linear", {"nextn_predict_layers": 1}, "nextn_predict_layers", "does not compute"),
    ("granitehybrid", {"ssm.conv_kernel": 1}, "ssm.conv_kernel", "1 is out of range"),
    ("granitehybrid", {"ssm.group_count": 3}, "ssm.time_step_rank", "a multiple of 3 groups"),
    ("granitehybrid", {"ssm.inner_size": 250}, "ssm.inner_size", "a multiple of 16 heads"),
    ("granitehybrid", {"ssm.state_size": 0}, "ssm.state_size", "0 is out of range"),
    ("granitehybrid", {"ssm.state_size": 32}, "tensor blk.0.ssm_in.weight", "contradicts the hyperparameters"),
    ("granitehybrid", {"attention.head_count_kv": [0, 1]}, "attention.head_count_kv", "has 2 values"),
    ("granitehybrid", {"expert_shared_feed_forward_length": 80}, "expert_shared_feed_forward_length", "contradicts"),
    ("granitehybrid", {"ssm.dt_b_c_rms": True}, "ssm.dt_b_c_rms", "does not compute"),
    ("nemotron_h", {"feed_forward_length": [0, 96, 96, 0]}, "feed_forward_length", "96 of layer 2, which"),
    ("nemotron_h", {"feed_forward_length": [0, 96]}, "feed_forward_length", "has 2 values"),
    ("nemotron_h", {"expert_count": 4}, "expert_count", "4 experts in nemotron_h"),
    ("nemotron_h_moe", {"expert_gating_func": 1}, "expert_gating_func", "another way to have experts"),
    ("nemotron_h_moe", {"leading_dense_block_count": 1}, "leading_dense_block_count", "another way"),
    ("nemotron_h_moe", {SHARED_WIDTH: 0, "expert_shared_count": 0}, SHARED_WIDTH, "is 0 or missing"),
    ("nemotron_h_moe", {"moe_latent_size": 64}, "tensor blk.1.ffn_up_exps.weight", "contradicts the hyperparameters"),
    ("falcon-h1", {"ssm.time_step_rank": 0}, "ssm.time_step_rank", "0 is out of range"),
    ("falcon-h1", {"expert_count": 4}, "expert_count", "4 experts in falcon-h1"),
    ("mamba2", {"attention.head_count": 2}, "attention.head_count", "2 is out of range"),
    ("mamba2", {"feed_forward_length": 96}, "feed_forward_length", "96 is out of range"),
    ("mamba2", {"ssm.group_count": 0}, "ssm.group_count", "0 is out of range"),
    ("mamba", {"attention.head_count": 2}, "attention.head_count", "2 is out of range"),
    ("mamba", {"ssm.conv_kernel": 1}, "ssm.conv_kernel", "1 is out of range"),
    ("mamba", {"ssm.time_step_rank": 0}, "ssm.time_step_rank", "0 is out of range"),
    ("mamba", {"ssm.state_size": 8}, "tensor blk.0.ssm_x.weight", "contradicts the hyperparameters"),
    ("mamba", {"ssm.group_count": 1}, "ssm.group_count", "does not compute"),
    ("jamba", {"attention.head_count_kv": [0, 1]}, "attention.head_count_kv", "has 2 values"),
    ("jamba", {"expert_feed_forward_length": [0, 96]}, "expert_feed_forward_length", "has 2 values"),
    ("jamba", {"expert_feed_forward_length": [0, 96, 0, 48]}, "expert_feed_forward_length", "differs from layer"),
    ("jamba", {"expert_feed_forward_length": [96] * 4}, "tensor blk.0.ffn_gate_inp.weight", "is missing"),
    ("jamba", {"expert_gating_func": 2}, "expert_gating_func", "does not compute"),
    ("jamba", {"ssm.dt_b_c_rms": True}, "ssm.dt_b_c_rms", "does not compute"),
    ("rwkv7", {"wkv.head_size": 48}, "wkv.head_size", "48 does not fit"),
    ("rwkv7", {"wkv.head_size": 0}, "wkv.head_size", "0 does not fit"),
    ("rwkv7", {"attention.head_count": 2}, "attention.head_count", "2 is out of range"),
    ("rwkv7", {"attention.gate_lora_rank": 0}, "attention.gate_lora_rank", "0 does not fit"),
    ("rwkv7", {"attention.iclr_lora_rank": 8}, "tensor blk.0.time_mix_a1.weight", "contradicts the hyperparameters"),
    ("rwkv7", {"attention.layer_norm_epsilon": 2.0}, "attention.layer_norm_epsilon", "2.0 is out of range"),
    ("rwkv7", {"token_shift_count": 1}, "token_shift_count", "is 1"),
    ("rwkv7", {"rescale_every_n_layers": 6}, "rescale_every_n_layers", "does not compute"),
    ("lfm2", {"attention.head_count_kv": [0, 1]}, "attention.head_count_kv", "has 2 values"),
    ("lfm2", {"attention.head_count_kv": [0, 1, 2]}, "attention.head_count_kv", "differs from layer to layer"),
    ("lfm2", {"shortconv.l_cache": 1}, "shortconv.l_cache", "1 is out of range"),
    ("lfm2moe", {"expert_gating_func": 5}, "expert_gating_func", "5 does not fit"),
]


@pytest.mark.few(24)
@pytest.mark.parametrize(("name", "keys", "field", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_keys_that_do_not_fit(
    tmp_path: Path, name: str, keys: dict[str, Any], field: str, message: str
) -> None:
    path = written(tmp_path / "hf", tmp_path / "m.gguf", name, keys)
    refused(path, ModelError, field, message)


KIMI = {"head_dim": 32, "num_heads": 2, "short_conv_kernel_size": 4, "kda_layers": [1, 3], "full_attn_layers": [2]}
CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("lfm2", {"conv_bias": True}, "conv_bias"),
    ("lfm2", {"layer_types": ["conv"]}, "layer_types"),
    ("lfm2", {"layer_types": None, "full_attn_idxs": [1, 7]}, "full_attn_idxs"),
    ("lfm2moe", {"routed_scaling_factor": 2.0}, "routed_scaling_factor"),
    ("lfm2moe", {"use_expert_bias": False}, "use_expert_bias"),
    ("granitehybrid", {"time_step_limit": [0.0, 0.1]}, "time_step_limit"),
    ("granitehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias"),
    ("granitehybrid", {"mamba_d_head": 32}, "mamba_d_head"),
    ("granitehybrid", {"layer_types": ["mamba"]}, "layer_types"),
    ("granitehybrid", {"layer_types": ["mamba", "moe", "mamba"]}, "layer_types"),
    ("granitehybrid", {"position_embedding_type": "alibi"}, "position_embedding_type"),
    ("nemotron_h", {"layers_block_type": None}, "layers_block_type"),
    ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "M-*X"}, "hybrid_override_pattern"),
    ("nemotron_h", {"num_hidden_layers": 5}, "layers_block_type"),
    ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
    ("nemotron_h", {"use_bias": True}, "use_bias"),
    ("nemotron_h", {"sliding_window": 64}, "sliding_window"),
    ("nemotron_h_moe", {"layers_block_type": ["mamba", "moe", "attention", "mlp"]}, "layers_block_type"),
    ("nemotron_h_moe", {"mlp_bias": True}, "mlp_bias"),
    ("falcon-h1", {"projectors_bias": True}, "projectors_bias"),
    ("falcon-h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": True}, "mamba_norm_before_gate"),
    ("falcon-h1", {"mamba_d_ssm": 250}, "mamba_d_head"),
    ("falcon-h1", {"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers"),
    ("falcon-h1", {"mlp_multipliers": [0.5, 0]}, "mlp_multipliers"),
    ("falcon-h1", {"key_multiplier": 0}, "key_multiplier"),
    ("mamba2", {"use_bias": True}, "use_bias"),
    ("mamba2", {"expand": 3}, "head_dim"),
    ("mamba2", {"hidden_act": "gelu"}, "hidden_act"),
    ("mamba", {"use_bias": True}, "use_bias"),
    ("mamba", {"time_step_rank": "some"}, "time_step_rank"),
    ("mamba", {"hidden_act": "gelu"}, "hidden_act"),
    ("mamba-falcon", {"mixer_rms_eps": 1e-3}, "mixer_rms_eps"),
    ("jamba", {"mamba_proj_bias": True}, "mamba_proj_bias"),
    ("jamba", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms"),
    ("jamba", {"attn_layer_offset": 4}, "attn_layer_offset"),
    ("jamba", {"sliding_window": 64}, "sliding_window"),
    ("rwkv7", {"norm_first": False}, "norm_first"),
    ("rwkv7", {"norm_bias": False}, "norm_bias"),
    ("rwkv7", {"attn": {"layers": [1], "num_heads": 2}}, "attn"),
    ("rwkv7", {"hidden_act": "relu"}, "hidden_act"),
    ("rwkv7", {"value_dim": [128, 256, 128]}, "value_dim"),
    ("rwkv7", {"value_dim": 256}, "value_dim"),
    ("rwkv7", {"num_heads": 4}, "num_heads"),
    ("rwkv7", {"norm_eps": 1e-6}, "norm_eps"),
    ("rwkv7", {"decay_low_rank_dim": 0}, "decay_low_rank_dim"),
    ("qwen35", {"attention_bias": True}, "attention_bias"),
    ("qwen35", {"layer_types": ["mamba"] * 3}, "layer_types"),
    ("qwen3next", {"norm_topk_prob": False}, "norm_topk_prob"),
    ("kimi-linear", {"mla_use_nope": False}, "mla_use_nope"),
    ("kimi-linear", {"attention_bias": True}, "attention_bias"),
    ("kimi-linear", {"hidden_act": "gelu"}, "hidden_act"),
    ("kimi-linear", {"use_grouped_topk": False}, "use_grouped_topk"),
    ("kimi-linear", {"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
    ("kimi-linear", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ("kimi-linear", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
    ("kimi-linear", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type"),
    ("kimi-linear", {"linear_attn_config": 3}, "linear_attn_config"),
    ("kimi-linear", {"linear_attn_config": {**KIMI, "num_heads": 4}}, "linear_num_heads"),
    ("kimi-linear", {"linear_attn_config": {**KIMI, "gate_lower_bound": -5.0}}, "linear_attn_config.gate_lower_bound"),
    ("kimi-linear", {"linear_attn_config": {**KIMI, "kda_layers": [0, 1]}}, "linear_attn_config.kda_layers"),
    ("kimi-linear", {"linear_attn_config": {**KIMI, "full_attn_layers": [1]}}, "linear_attn_config.full_attn_layers"),
    ("kimi-linear", {"linear_attn_config": {**KIMI, "kda_layers": [1]}}, "linear_attn_config"),
    ("kimi-linear", {"linear_attn_config": None, "layer_types": ["linear_attention"]}, "layer_types"),
    ("qwen3next", {"mlp_only_layers": [0]}, "mlp_only_layers"),
]


@pytest.mark.parametrize(("name", "values", "field"), CONFIGS, ids=[c[2] for c in CONFIGS])
def test_configurations_that_are_not_computed(tmp_path: Path, name: str, values: dict[str, Any], field: str) -> None:
    save_only(tmp_path / "hf", TABLE[name])
    folders.edit(tmp_path / "hf", "config.json", **values)
    with pytest.raises(ModelError) as caught, open_model_file(tmp_path / "hf"):
        pass
    assert caught.value.field == field


def test_kimi_as_transformers_saves_it(tmp_path: Path) -> None:
    """With kinds of layers, and dense layers under the module of experts."""
    want = saved(tmp_path / "hf", replace(TABLE["kimi-linear"], folder=""))
    with open_model_file(tmp_path / "hf") as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_axes_of_one_of_kimi(tmp_path: Path) -> None:
    """Convolutions and A in four axes, as converters write them, or in two."""
    want = saved(tmp_path / "hf", TABLE["kimi-linear"])
    with open_model_file(tmp_path / "hf") as file:
        small = {n: dequantize(file.tensor(n)) for n in file.tensors if n.endswith("ssm_a") or "conv1d" in n}
    four = {n: x[None] if x.ndim == 3 else x[None, None] for n, x in small.items()}
    for remade in (four, {n: x.reshape(len(x), -1) for n, x in small.items()}):
        path = written(tmp_path / "hf", tmp_path / "m.gguf", "kimi-linear", {}, remade)
        with GGUFFile.open(path) as file:
            assert {n: file.tensors[n].shape for n in remade} == {n: x.shape for n, x in remade.items()}
            assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_sizes_of_rwkv7_that_follow_from_others(tmp_path: Path) -> None:
    """Heads by their number, and the width of channel mixing by a ratio: 0.7 * 128 is 89, and 96 in whole 32."""
    want = saved(tmp_path / "hf", TABLE["rwkv7"])
    folders.edit(tmp_path / "hf", "config.json", head_dim=None, intermediate_size=None, hidden_ratio=0.7)
    with open_model_file(tmp_path / "hf") as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_older_folders_of_rwkv7(tmp_path: Path) -> None:
    """With the shares of all six as one tensor, which flash-linear-attention takes apart when it reads a folder."""
    want, path = saved(tmp_path, TABLE["rwkv7"]), tmp_path / "model.safetensors"
    tensors = load_file(path)
    for i in range(3):
        parts = [tensors.pop(f"model.layers.{i}.attn.x_{n}") for n in "rwkvag"]
        tensors[f"model.layers.{i}.attn.x_x"] = torch.cat(parts).flatten(1)
    save_file(tensors, path)
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_a_share_of_rwkv7_that_is_missing(tmp_path: Path) -> None:
    save_only(tmp_path, TABLE["rwkv7"])
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({n: x for n, x in tensors.items() if n != "model.layers.1.attn.x_k"}, tmp_path / "model.safetensors")
    message = r"'blk.1.time_mix_lerp_fused.weight': has parts 0, 1, 3, 4, ... \(5\) \(allowed: 0 to 5\)"
    with pytest.raises(ModelError, match=message), open_model_file(tmp_path):
        pass


def test_files_of_rwkv7_have_what_llama_cpp_wants_of_the_first_layer(tmp_path: Path) -> None:
    """Another file may lack it: there is no value to mix with."""
    want = saved(tmp_path / "hf", TABLE["rwkv7"])
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        assert shapes["blk.0.time_mix_v1.weight"] == shapes["blk.0.time_mix_a1.weight"] == (24, 128)
        assert shapes["blk.1.time_mix_v1.weight"] == (16, 128)
        values = {key: file.metadata[key] for key in file.metadata if key != "general.architecture"}
        others = {n: dequantize(file.tensor(n)) for n in file.tensors if not n.startswith("blk.0.time_mix_v")}
        others |= {"blk.0.time_mix_value.weight": dequantize(file.tensor("blk.0.time_mix_value.weight"))}
        write_gguf(tmp_path / "less.gguf", "rwkv7", values, others)
    with GGUFFile.open(tmp_path / "less.gguf") as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_older_words_of_lfm2(tmp_path: Path) -> None:
    want = saved(tmp_path / "hf", TABLE["lfm2"])
    older = {"layer_types": None, "full_attn_idxs": [1], "block_ff_dim": 96, "intermediate_size": None}
    folders.edit(tmp_path / "hf", "config.json", **older)
    with open_model_file(tmp_path / "hf") as file:
        assert read_model(file).hparams.n_ff == 96
        assert error(logits(file, ReferenceBackend(), TOKENS, at_once=True), want) < 1e-4


def test_older_words_of_granite(tmp_path: Path) -> None:
    """Kinds of layers as published folders name them, and a limit that JSON has no number for."""
    want = saved(tmp_path / "hf", TABLE["granitehybrid"])
    older = {"layer_types": ["mamba", "attention", "mamba"], "time_step_limit": [0.0, float("inf")],
             "mamba_d_head": "auto"}
    folders.edit(tmp_path / "hf", "config.json", **older)
    with open_model_file(tmp_path / "hf") as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


@pytest.mark.parametrize(("name", "pattern"), [("nemotron_h", "M-*M"), ("nemotron_h_moe", "ME*E")])
def test_older_words_of_nemotron(tmp_path: Path, name: str, pattern: str) -> None:
    """A letter for each layer, and layers that guess tokens, which are left out."""
    kinds = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    options = TABLE[name].options | {"layers_block_type": [kinds[letter] for letter in pattern]}
    want = saved(tmp_path / "hf", replace(TABLE[name], options=options))
    older = {"layers_block_type": None, "hybrid_override_pattern": pattern, "num_hidden_layers": 4,
             "head_dim": None, "attention_head_dim": 64, "time_step_limit": [0.0, float("inf")]}
    folders.edit(tmp_path / "hf", "config.json", **older)
    with open_model_file(tmp_path / "hf") as file:
        assert file.metadata.get_str("general.architecture") == name
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_what_norms_add_by_its_other_key(tmp_path: Path) -> None:
    other = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 3e-3}
    with GGUFFile.open(written(tmp_path / "hf", tmp_path / "m.gguf", "nemotron_h", other)) as file:
        assert read_model(file).hparams.eps == pytest.approx(3e-3)


def test_a_model_without_attention_says_so(tmp_path: Path) -> None:
    with GGUFFile.open(written(tmp_path / "hf", tmp_path / "m.gguf", "mamba2", {"context_length": None})) as file:
        hp = read_model(file).hparams
        assert (hp.n_ctx_train, hp.n_head, hp.kv_heads(0)[0]) == (1 << 20, 0, 0)
        assert lines(facts(file, 128, device="cpu"))["heads"] == "none"


def test_weights_that_are_multiplied() -> None:
    """Floats are rounded to their type, of what is quantized scales are multiplied, or it is refused."""
    values = np.float32([[1.0, 3.0], [5.0, 7.0]])
    bf16 = by_name("BF16")
    tensor = LazyTensor("blk.0.ssm_in.weight", bf16, (2, 2), lambda: quantize_reference(values, bf16))
    rows = dequantize(multiplied(tensor, np.float32([0.5, 1 / 3])).load())
    np.testing.assert_array_equal(rows[0], [0.5, 1.5])
    np.testing.assert_allclose(rows[1], [5 / 3, 7 / 3], rtol=2**-8)
    for packed in (
        group_format(4, 16, "BF16", "zero"),
        group_format(3, 32, "F16", "minimum"),
        channel_format("INT8", 64),
    ):
        made = partial(quantize_reference, np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32), packed)
        tensor = LazyTensor("blk.0.ssm_in.weight", packed, (3, 64), made)
        got = multiplied(tensor, np.float32([0.1, -3, 7])).load()
        assert packed.per_row == (got.format is packed)
        np.testing.assert_allclose(dequantize(got), dequantize(made()) * np.float32([[0.1], [-3], [7]]), rtol=1e-5)
    packed = by_name("MXFP4")
    tensor = LazyTensor("blk.0.ssm_in.weight", packed, (2, 32), lambda: quantize_reference(np.ones((2, 32)), packed))
    assert multiplied(tensor, 1.0) is tensor
    with pytest.raises(ModelError, match=r"is MXFP4.*rows with floating scales, as it is to be multiplied"):
        multiplied(tensor, 2.0)


def test_granite_without_layers_that_scan(tmp_path: Path) -> None:
    """As some of Granite 4, which have the same class: they are what converters write, Granite."""
    options = TABLE["granitehybrid"].options | {"layer_types": ["attention"] * 3, "position_embedding_type": "rope"}
    want = saved(tmp_path / "hf", replace(TABLE["granitehybrid"], options=options))
    with open_model_file(tmp_path / "hf") as file:
        assert file.metadata.get_str("general.architecture") == "granite"
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4
    for word, value in (("num_local_experts", 4), ("position_embedding_type", "nope")):
        folders.edit(tmp_path / "hf", "config.json", **{word: value})
        with (
            pytest.raises(ModelError, match=f"{word}: is .* all layers have attention"),
            open_model_file(tmp_path / "hf"),
        ):
            pass
        folders.edit(tmp_path / "hf", "config.json", num_local_experts=0)


def test_sizes_of_mamba_that_follow_from_the_width(tmp_path: Path) -> None:
    want = saved(tmp_path / "hf", TABLE["mamba"])
    folders.edit(tmp_path / "hf", "config.json", time_step_rank="auto", intermediate_size=None)
    with open_model_file(tmp_path / "hf") as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_experts_of_jamba_by_their_routers(tmp_path: Path) -> None:
    """As in files of llama.cpp, which do not say which layers have experts."""
    want = saved(tmp_path / "hf", TABLE["jamba"])
    path = written(tmp_path / "hf", tmp_path / "m.gguf", "jamba", {"expert_feed_forward_length": None})
    with GGUFFile.open(path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_a_norm_of_one_group_as_a_matrix(tmp_path: Path) -> None:
    want = saved(tmp_path / "hf", TABLE["granitehybrid"])
    with open_model_file(tmp_path / "hf") as file:
        norms = {n: dequantize(file.tensor(n))[None] for n in file.tensors if n.endswith("ssm_norm.weight")}
    with GGUFFile.open(written(tmp_path / "hf", tmp_path / "m.gguf", "granitehybrid", {}, norms)) as file:
        assert file.tensors["blk.0.ssm_norm.weight"].shape == (1, 256)
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4
