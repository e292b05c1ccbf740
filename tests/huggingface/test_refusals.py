"""What config.json may ask for and is not computed: refused with the key, its value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ModelError
from octavo.huggingface.config.config_json import read_hyperparams, read_keys
from octavo.models.shared.config import Config
from tests.models.checkpoints import BASE

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
LATENT = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1,
    "kv_lora_rank": 64, "qk_rope_head_dim": 16,
}
LOCAL = {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}}}
CHUNKS = {"num_experts_per_tok": 1, "attention_chunk_size": 64, "intermediate_size_mlp": 64}
ERNIE = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64}
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("Olmo3", {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, ["sliding_attention", "yarn"]),
    ("Gemma3", LOCAL, ["sliding_attention", "linear", "default"]),
    ("Gemma3n", {**LOCAL, "sliding_window": 8}, ["sliding_attention", "linear", "default"]),
    ("MiMoV2Flash", {**LOCAL, **LATENT, "sliding_window": 8}, ["sliding_attention", "linear", "default"]),
    ("Llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
    ("Qwen3", {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": YARN}, ["rope_scaling", "the same, or one"]),
    ("Qwen3", {"rope_parameters": YARN, "rope_scaling": {**YARN, "factor": 2.0}}, ["rope_scaling", "the same, or one"]),
    ("Qwen3", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.25}}, ["partial_rotary_factor", "0.25"]),
    ("Olmo3", {"layer_types": ["full_attention"]}, ["layer_types", "2 of"]),
    ("Olmo2", {"rope_parameters": {**YARN, "attention_factor": "1"}}, ["attention_factor", "1"]),
    ("Olmo2", {"rope_parameters": {**YARN, "truncate": False}}, ["truncate", "False"]),
    ("Granite", {"logits_scaling": 0}, ["logits_scaling", "over 0"]),
    ("GraniteMoe", {"num_experts_per_tok": 5}, ["num_experts_per_tok", "1 to 4"]),
    ("GraniteMoeShared", {"shared_intermediate_size": -1}, ["shared_intermediate_size", "-1"]),
    ("SmolLM3", {"use_sliding_window": True}, ["use_sliding_window", "true"]),
    ("SmolLM3", {"mlp_bias": True}, ["mlp_bias", "true"]),
    ("SmolLM3", {"no_rope_layers": [1, 0]}, ["no_rope_layers", "[1, 0]"]),
    ("SmolLM3", {"no_rope_layer_interval": 2}, ["no_rope_layers", "2"]),
    ("Qwen2Moe", {"norm_topk_prob": True}, ["norm_topk_prob", "true"]),
    ("Qwen2Moe", {"mlp_only_layers": [0]}, ["mlp_only_layers", "dense layers"]),
    ("Ministral3", {"sliding_window": 64}, ["sliding_window", "64", "null"]),
    ("Ministral3", {"rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 1.0}}, ["mscale", "0.5"]),
    ("Ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": -1.0}}, ["llama_4_scaling_beta", "-1.0"]),
    ("GptOss", {"swiglu_limit": 5.0}, ["swiglu_limit", "5", "7"]),
    ("GptOss", {"attention_bias": False}, ["attention_bias", "false"]),
    ("GptOss", {"rope_parameters": {**YARN, "truncate": True}}, ["truncate", "True"]),
    ("GptOss", {"rope_parameters": {**YARN, "truncate": False}, "num_experts_per_tok": 9}, ["num_experts_per_tok"]),
    ("DeepseekV2", {**LATENT, "norm_topk_prob": True}, ["norm_topk_prob", "true"]),
    ("DeepseekV2", {**LATENT, "topk_method": "noaux_tc"}, ["topk_method", "noaux_tc", "greedy"]),
    ("DeepseekV2", {**LATENT, "scoring_func": "sigmoid"}, ["scoring_func", "sigmoid", "softmax"]),
    ("DeepseekV3", {**LATENT, "moe_layer_freq": 2}, ["moe_layer_freq", "2"]),
    ("DeepseekV3", {**LATENT, "rope_interleave": False}, ["rope_interleave", "false"]),
    ("DeepseekV3", {**LATENT, "n_group": 3, "topk_group": 1}, ["expert_group_count", "a divisor of 4"]),
    ("DeepseekV3", {**LATENT, "attention_bias": True}, ["attention_bias", "true"]),
    ("DeepseekV3", {**LATENT, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}}, ["mscale", "1.0"]),
    ("DeepseekV3", {**LATENT, "n_shared_experts": -1}, ["n_shared_experts", "-1"]),
    ("Llama4", {**CHUNKS, "num_experts_per_tok": 2}, ["num_experts_per_tok", "2", "1"]),
    ("Llama4", {**CHUNKS, "no_rope_layers": [0, 1]}, ["no_rope_layers", "[0, 1]"]),
    ("Llama4", {**CHUNKS, "layer_types": ["full_attention"] * 2}, ["layer_types", "chunked_attention"]),
    ("Llama4", {**CHUNKS, "moe_layers": [1]}, ["moe_layers", "[1]"]),
    ("Llama4", {**CHUNKS, "use_qk_norm": False}, ["use_qk_norm", "False", "True"]),
    ("Llama4", {**CHUNKS, "attention_chunk_size": None}, ["attention_chunk_size", "missing"]),
    ("Gemma2", {"use_bidirectional_attention": True}, ["use_bidirectional_attention", "true"]),
    ("Gemma2", {"hidden_activation": "gelu"}, ["hidden_activation", "gelu_pytorch_tanh"]),
    ("Gemma2", {"attn_logit_softcapping": -1.0}, ["attn_logit_softcapping", "-1.0"]),
    ("Cohere2", {"use_qk_norm": True}, ["use_qk_norm", "true"]),
    ("Cohere2", {"use_parallel_block": False}, ["use_parallel_block", "false"]),
    ("Cohere2", {"attention_bias": True}, ["attention_bias", "true"]),
    ("Cohere2", {"layer_norm_eps": 0}, ["layer_norm_eps", "over 0"]),
    ("Starcoder2", {"hidden_act": "gelu_pytorch_tanh", "use_bias": False}, ["use_bias", "false"]),
    ("Starcoder2", {"hidden_act": "silu"}, ["hidden_act", "silu"]),
    ("Glm4", {"partial_rotary_factor": 1.5}, ["partial_rotary_factor", "1.5"]),
    ("Glm4", {"rope_parameters": YARN}, ["rope_type", "yarn", "default"]),
    ("Ministral", {"sliding_window": 64, "layer_types": ["chunked"] * 2}, ["layer_types", "chunked"]),
    ("Glm4Moe", {**LATENT, "scoring_func": "softmax"}, ["scoring_func", "softmax", "sigmoid"]),
    ("Glm4Moe", {**LATENT, "num_nextn_predict_layers": -1}, ["num_nextn_predict_layers", "-1"]),
    ("Glm4Moe", {**LATENT, "n_group": 2, "topk_group": 3}, ["topk_group", "3"]),
    ("Glm4MoeLite", {**LATENT, "mlp_layer_types": ["sparse", "dense"]}, ["mlp_layer_types", "dense, then sparse"]),
    ("Ernie4_5_Moe", {**ERNIE, "use_bias": True}, ["use_bias", "true"]),
    ("Ernie4_5_Moe", {**ERNIE, "moe_layer_interval": 2}, ["moe_layer_interval", "2"]),
    ("Ernie4_5_Moe", {**ERNIE, "moe_layer_end_index": 0}, ["moe_layer_end_index", "1, the last layer"]),
    ("Exaone4", {"sliding_window": 8, "layer_types": ["full_attention"] * 2}, ["sliding_window", "not null"]),
    ("Exaone4", {"sliding_window": 8, "sliding_window_pattern": "LGL"}, ["sliding_window_pattern", "LGL"]),
    ("HunYuanDenseV1", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ["alpha", "missing"]),
    ("HunYuanDenseV1", {"use_cla": True}, ["use_cla", "true"]),
    ("HunYuanDenseV1", {"use_qk_norm": False}, ["use_qk_norm", "false"]),
    ("HunYuanMoEV1", {"moe_topk": [1, 2]}, ["moe_topk", "[1, 2]", "one value"]),
    ("HunYuanMoEV1", {"moe_topk": 2, "num_shared_expert": [2, 2]}, ["num_shared_expert", "2"]),
    ("MiniMaxM2", {"scoring_func": "softmax"}, ["scoring_func", "softmax", "sigmoid"]),
    ("MiniMaxM2", {"attn_type_list": [1, 0]}, ["attn_type_list", "[1, 0]"]),
    ("Olmoe", {"clip_qkv": 8.0}, ["clip_qkv", "8.0", "null"]),
    ("Olmoe", {"norm_topk_prob": True}, ["norm_topk_prob", "true"]),
    ("Dots1", {**LATENT, "sliding_window": 8, "max_window_layers": 1}, ["sliding_window", "some layers"]),
    ("Afmoe", {"mup_enabled": False}, ["mup_enabled", "false"]),
    ("Afmoe", {"mup_enabled": True, "route_norm": False}, ["route_norm", "false"]),
]


@pytest.mark.parametrize(("name", "values", "says"), REFUSED)
def test_refused(name: str, values: dict[str, Any], says: list[str]) -> None:
    config = Config({**BASE, **EXPERTS, "architectures": [f"{name}ForCausalLM"], **values}, "c")
    with pytest.raises(ModelError) as caught:
        read_hyperparams(config, read_keys(config))
    assert all(text in str(caught.value) for text in says), caught.value
