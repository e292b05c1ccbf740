"""Sliding windows of checkpoints: found where transformers has one, and in the GGUF file that is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import octavo
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.huggingface.config.config_json import own_classes, read_hyperparams, read_keys
from octavo.huggingface.config.rope_config import rope_tensors
from octavo.models.shared.config import Config
from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint
from tests.convert.folders import save
from tests.models.checkpoints import BASE, Case

EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
GEMMA3 = "Gemma3ForCausalLM"
USED = {"use_sliding_window": True, "sliding_window": 64}
WITH_WINDOWS = [
    f"{name}ForCausalLM" for name in ("Mistral", "Ministral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Phi3")
]
KEYS: list[dict[str, Any]] = [
    {}, {"sliding_window": None}, {"sliding_window": 64}, USED, {**USED, "max_window_layers": 1},
    {**USED, "max_window_layers": 2}, {**USED, "layer_types": ["full_attention"] * 2},
    {**USED, "layer_types": ["full_attention", "sliding_attention"]},
    {"use_sliding_window": True, "max_window_layers": 0},
]


def of_transformers(config: Any) -> int | None:
    """The window that some layer of a model has."""
    kinds = getattr(config, "layer_types", None)
    window: int | None = None if kinds and "sliding_attention" not in kinds else config.sliding_window
    return window


@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_windows_are_those_of_transformers(name: str) -> None:
    for keys in KEYS:
        if "layer_types" in keys and name not in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
            continue  # only these two look at it
        theirs = getattr(transformers, name.replace("ForCausalLM", "Config"))(**keys, num_hidden_layers=2)
        config = Config({**BASE, **EXPERTS, "architectures": [name], **keys}, "c")
        assert read_hyperparams(config, read_keys(config)).n_window == of_transformers(theirs), keys


def test_llama_has_none() -> None:
    config = Config({**BASE, "architectures": ["LlamaForCausalLM"], "sliding_window": 64}, "c")
    assert read_hyperparams(config, read_keys(config)).n_window is None


@pytest.mark.parametrize("keys", [
    {}, {"sliding_window_pattern": 2}, {"sliding_window_pattern": 1}, {"layer_types": ["full_attention"] * 8},
    {"sliding_window": 7, "layer_types": ["full_attention", *["sliding_attention"] * 7]},
])
def test_windows_of_gemma_are_those_of_transformers(keys: dict[str, Any]) -> None:
    theirs = transformers.Gemma3TextConfig(**keys, num_hidden_layers=8)
    config = Config({**BASE, "architectures": [GEMMA3], **keys, "num_hidden_layers": 8}, "c")
    hp = read_hyperparams(config, read_keys(config))
    wanted = [theirs.sliding_window if kind == "sliding_attention" else 0 for kind in theirs.layer_types]
    assert [hp.window(i) for i in range(8)] == wanted
    assert hp.n_ctx_most == hp.n_ctx_train


@pytest.mark.parametrize(("values", "says"), [
    ({"sliding_window": None}, ["sliding_window", "null"]), ({"layer_types": ["chunked"] * 2}, ["layer_types"]),
    ({"layer_types": ["full_attention"]}, ["layer_types", "2 of"]),
    ({"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping", "50.0", "null"]),
    ({"use_bidirectional_attention": True}, ["use_bidirectional_attention"]), ({"head_dim": 0}, ["head_dim"]),
    ({"hidden_activation": "silu"}, ["hidden_activation", "gelu_pytorch_tanh"]),
    ({"query_pre_attn_scalar": 0}, ["query_pre_attn_scalar"]), ({"sliding_window_pattern": 0}, ["pattern"]),
    ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, ["rope_type", "yarn", "default, linear"]),
])
def test_what_gemma_has_not(values: dict[str, Any], says: list[str]) -> None:
    config = Config({**BASE, "architectures": [GEMMA3], **values}, "c")
    with pytest.raises(ModelError) as caught:
        read_keys(config)
    assert all(text in str(caught.value) for text in says)


@pytest.mark.parametrize(("values", "says"), [
    ({"partial_rotary_factor": 1.5}, ["partial_rotary_factor", "1.5"]),
    ({"rope_parameters": {"rope_type": "yarn"}}, ["rope_type", "yarn", "longrope"]),
    ({"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}}, ["original_max_position"]),
])
def test_what_phi_has_not(values: dict[str, Any], says: list[str]) -> None:
    config = Config({**BASE, "architectures": ["Phi3ForCausalLM"], **values}, "c")
    with pytest.raises(ModelError) as caught:
        read_keys(config)
    assert all(text in str(caught.value) for text in says)


@pytest.mark.parametrize("factors", [None, [1.0] * 31, [1.0] * 31 + [0.0], [True] * 32, "long"])
def test_longrope_needs_a_divisor_for_each_pair(factors: object) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": factors}
    values = {"rope_parameters": rope, "original_max_position_embeddings": 64}
    config = Config({**BASE, "architectures": ["Phi3ForCausalLM"], **values}, "c")
    hp = read_hyperparams(config, read_keys(config))
    with pytest.raises(ModelError, match=r"long_factor.*32 numbers over 0"):
        rope_tensors(config, own_classes()["Phi3ForCausalLM"], hp)


@pytest.mark.parametrize(
    ("key", "value"), [("sliding_window", "64"), ("sliding_window", -1), ("max_window_layers", 1.5)]
)
def test_windows_that_are_no_numbers(key: str, value: object) -> None:
    config = Config({**BASE, **USED, "architectures": ["Qwen2ForCausalLM"], "max_window_layers": 0, key: value}, "c")
    with pytest.raises(ModelError, match=key):
        read_hyperparams(config, read_keys(config))


def test_a_folder_and_its_file_have_contexts_beyond_the_window(tmp_path: Path) -> None:
    save(tmp_path / "hf", Case("llama", "MistralConfig", {"sliding_window": 100}))
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf")
    for name in ("hf", "m.gguf"):
        with octavo.load(tmp_path / name, device="reference") as model:
            assert model.engine.n_ctx == 512
            assert model.file.metadata.get_int("llama.attention.sliding_window") == 100
            assert [model.engine.model.hparams.window(i) for i in range(2)] == [100, 100]


def test_windows_of_some_layers_go_from_a_folder_to_its_file(tmp_path: Path) -> None:
    save(tmp_path / "hf", Case("qwen2", "Qwen2Config", {**USED, "sliding_window": 100, "max_window_layers": 1}))
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf")
    for name in ("hf", "m.gguf"):
        with octavo.load(tmp_path / name, device="reference") as model:
            assert model.engine.n_ctx == 512
            assert model.file.metadata.get_int("qwen2.attention.sliding_window") == 100
            assert [model.engine.model.hparams.window(i) for i in range(2)] == [0, 100]
    quantize_checkpoint(tmp_path / "hf", tmp_path / "int8", "int8-w8a8")
    with open_model_file(tmp_path / "int8") as file:
        assert file.metadata.get_int("qwen2.attention.sliding_window") == 100
    with pytest.raises(ModelError, match=r"sliding window of 100 tokens, with which no config.json"):
        quantize_checkpoint(tmp_path / "m.gguf", tmp_path / "out", "int8-w8a8")
