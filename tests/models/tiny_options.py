"""Options of tiny random checkpoints: sizes that all have, and for each architecture what its cases share."""

from __future__ import annotations

from typing import Any

SMALL = {
    "hidden_size": 128, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 320, "num_hidden_layers": 2, "max_position_embeddings": 256,
}
"""Sizes of every case, heads like those of other tests so that kernels are shared; a case's own come before them."""
WINDOW = 4
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW}

ODD = {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 144, "intermediate_size": 88}
"""No K/V heads shared, and sizes that are not powers of two."""

OLMO3_ROPE = {
    "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 32,
                       "attention_factor": 1.2079441541679836},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}
MINISTRAL3_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}
GRANITE = {
    "attention_multiplier": 0.09, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,

}
GRANITE_HYBRID = {
    **GRANITE, "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 16,
    "mamba_n_groups": 1, "mamba_d_state": 16, "num_local_experts": 0, "num_experts_per_tok": 0,
    "shared_intermediate_size": 96, "attention_bias": False, "position_embedding_type": "nope",
}
NEMOTRON_H = {
    "head_dim": 64, "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "mamba_num_heads": 4,
    "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "num_hidden_layers": None, "time_step_min": 1e-30,
}
"""Steps of training have a least, which transformers holds those of prompts to, and no other program does."""
NEMOTRON_H_MOE = {
    **NEMOTRON_H, "layers_block_type": ["mamba", "moe", "attention", "moe"], "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 80,
    "routed_scaling_factor": 2.5,
}
JAMBA = {
    "num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 1, "expert_layer_period": 2,
    "expert_layer_offset": 1, "num_experts": 6, "num_experts_per_tok": 2, "mamba_dt_rank": 8,
}
"""Layers that scan with and without experts, and one that attends with them."""
MAMBA = {"intermediate_size": 256, "time_step_rank": 8}
MAMBA2 = {"num_heads": 8, "head_dim": 32, "state_size": 16, "n_groups": 2}
FALCON_H1 = {
    "head_dim": 64, "mamba_d_ssm": 256, "mamba_n_heads": 8, "mamba_d_state": 32, "mamba_n_groups": 2,
    "lm_head_multiplier": 0.04, "embedding_multiplier": 5.6, "mlp_multipliers": [0.88, 0.3], "key_multiplier": 0.4,
    "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.2, "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.24, "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.31], "mamba_norm_before_gate": False,
}
GRANITE_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN2_MOE = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
    "norm_topk_prob": False,
}
GPT_OSS = {
    "head_dim": 64, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"],
    "num_local_experts": 6, "num_experts_per_tok": 2,
}
DEEPSEEK = {
    "kv_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40, "num_key_value_heads": 2,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "num_mtp_layers": 0,
}
DEEPSEEK_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
    "beta_slow": 1.0,
}
ROUTED = {
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
}
ERNIE = {
    "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 48, "moe_layer_start_index": 1, "pad_token_id": None,
}
NTK = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}
LLAMA4 = {
    "num_hidden_layers": 4, "head_dim": 64, "intermediate_size_mlp": 80, "num_local_experts": 4, "pad_token_id": None,
    "num_experts_per_tok": 1, "attention_chunk_size": WINDOW, "floor_scale": 8, "attn_scale": 0.3,
}
GEMMA4 = {
    "num_hidden_layers": 6, "head_dim": 64, "global_head_dim": 128, "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "num_key_value_heads": 2,
    "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 3.0,
}
"""As the dense model of 31B."""
GEMMA4_SMALL = {
    **GEMMA4, "attention_k_eq_v": False, "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 320,
    "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "final_logit_softcapping": None, "num_key_value_heads": 1,
}
"""As E2B."""
GEMMA4_EXPERTS = {
    **GEMMA4, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 48,
}
"""As the model of 26B of which a token takes 4."""
GEMMA3N = {
    "num_hidden_layers": 6, "head_dim": 64, "sliding_window": WINDOW, "num_kv_shared_layers": 3, "laurel_rank": 32,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 256, "final_logit_softcapping": 3.0,
    "activation_sparsity_pattern": [0.9, 0.6, 0.0, 0.0, 0.0, 0.3],
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}
QWEN3_VL: dict[str, Any] = {"head_dim": 64, "rope_parameters": {
    "rope_type": "default", "rope_theta": 1e4, "mrope_section": [12, 10, 10], "mrope_interleaved": True}}
MINICPM = {
    "embedding_multiplier": 12.0, "residual_multiplier": 0.9, "logits_scaling": 2.0, "attention_multiplier": 0.125,
}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64,
    "short_factor": [1 + i / 8 for i in range(32)], "long_factor": [2 + i / 2 for i in range(32)],
}
PHIMOE = {"num_local_experts": 6, "num_experts_per_tok": 2}
MIMO2 = {
    "head_dim": 64, "v_head_dim": 48, "num_hidden_layers": 3, "n_routed_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "sliding_window": WINDOW, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
}
STEP35: dict[str, Any] = {
    "head_dim": 64, "num_sliding_attention_heads": 3, "num_hidden_layers": 3, "sliding_window": WINDOW,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "n_routed_experts": 6,
    "mlp_layer_types": ["dense", "sparse", "sparse"], "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "share_expert_dim": 80, "moe_router_scaling_factor": 1.5, "swiglu_limits": [None, 0.0, 0.5],
    "swiglu_limits_shared": [0.3, 0.4, None], "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
}
EXAONE_MOE = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_shared_experts": 1,
    "first_k_dense_replace": 1,
}
SMOLLM3 = {"num_hidden_layers": 5, "pad_token_id": None, "tie_word_embeddings": True}
LFM2 = {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False, "pad_token_id": None,
}
LFM2_MOE = {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 48, "pad_token_id": None,
}
DELTA_NET = {
    "num_hidden_layers": 3, "layer_types": [f"{kind}_attention" for kind in ("linear", "full", "linear")],
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}
KIMI_LINEAR = {
    "num_hidden_layers": 3, "layer_types": [f"{kind}_attention" for kind in ("linear", "full", "linear")],
    "mlp_layer_types": ["dense", "sparse", "sparse"], "linear_head_dim": 32, "linear_num_heads": 2,
    "kv_lora_rank": 48, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40, "num_key_value_heads": 2,
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 2, "n_group": 1,
    "topk_group": 1, "routed_scaling_factor": 1.5, "rms_norm_eps": 1e-6, "pad_token_id": None, "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What norms of short vectors add is 1e-6 in transformers, whatever the configuration says."""
PLAMO3 = {
    "num_hidden_layers": 3, "head_dim": 64, "window_size": WINDOW, "sliding_window_pattern": 2, "rope_theta": 1e6,
    "rope_local_theta": 5e3, "rope_scaling_factor": 1, "tie_word_embeddings": True,
}
RWKV7 = {
    "num_hidden_layers": 3, "head_dim": 64, "norm_eps": 1e-5, "decay_low_rank_dim": 32, "a_low_rank_dim": 24,
    "v_low_rank_dim": 16, "gate_low_rank_dim": 40, "tie_word_embeddings": False,
}
DELTA_NET_EXPERTS = {
    **DELTA_NET, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
