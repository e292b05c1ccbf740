"""Tiny random checkpoints of every class that folders may have, for the table of classes and devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.models import tiny_options as o
from tests.models.checkpoints import CASES, LLAMA3_ROPE, Case


def small(arch: str, config: str, options: dict[str, Any] | None = None) -> Case:
    return Case(arch, config, {**o.SMALL, **(options or {})})


TABLE: dict[str, Case] = {
    **{name: small(CASES[name].arch, CASES[name].config, CASES[name].options | o.SMALL | more) for name, more in {
        "llama": {}, "mistral": {"sliding_window": o.WINDOW}, "mixtral": {}, "qwen2": {}, "qwen3": {},
        "qwen3moe": {}, "phi3": {"sliding_window": o.WINDOW}, "gemma3": {"sliding_window": o.WINDOW},
    }.items()},
    "qwen2-window": small("qwen2", "Qwen2Config", {**o.WINDOWED, "max_window_layers": 1}),
    "qwen3-window": small("qwen3", "Qwen3Config", {
        **o.WINDOWED, "head_dim": 64, "layer_types": ["sliding_attention", "full_attention"]}),
    "qwen3moe-window": small("qwen3moe", "Qwen3MoeConfig", CASES["qwen3moe"].options | o.WINDOWED),
    "ministral": small("llama", "MinistralConfig", {
        "sliding_window": o.WINDOW, "head_dim": 64,
        "layer_types": ["full_attention", "sliding_attention"]}),
    "mistral3": small("mistral3", "Ministral3Config", {"rope_parameters": o.MINISTRAL3_ROPE, "head_dim": 64}),
    "olmo2": small("olmo2", "Olmo2Config"),
    "olmo2-odd": small("olmo2", "Olmo2Config", o.ODD),
    "olmo3": small("olmo2", "Olmo3Config", {
        "sliding_window": o.WINDOW, "rope_parameters": o.OLMO3_ROPE,
        "layer_types": ["sliding_attention", "full_attention"]}),
    "granite": small("granite", "GraniteConfig", o.GRANITE),
    "granite-odd": small("granite", "GraniteConfig", {**o.GRANITE, **o.ODD, "attention_bias": True}),
    "granitemoe": small("granitemoe", "GraniteMoeConfig", {**o.GRANITE, **o.GRANITE_EXPERTS}),
    "granitemoe-shared": small("granitemoe", "GraniteMoeSharedConfig",
                               {**o.GRANITE, **o.GRANITE_EXPERTS, "shared_intermediate_size": 80}),
    "smollm3": small("smollm3", "SmolLM3Config", o.SMOLLM3),
    "gemma2": small("gemma2", "Gemma2Config", {"head_dim": 64, "sliding_window": o.WINDOW, "query_pre_attn_scalar": 40,
                                                "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma2-uncapped": small("gemma2", "Gemma2Config", {
        "head_dim": 64, "sliding_window": o.WINDOW, "attn_logit_softcapping": None, "final_logit_softcapping": None,
        "layer_types": ["full_attention", "sliding_attention"]}),
    "cohere2": small("cohere2", "Cohere2Config", {
        "sliding_window": o.WINDOW, "logit_scale": 0.25, "layer_types": ["sliding_attention", "full_attention"]}),
    "starcoder2": small("starcoder2", "Starcoder2Config"),
    "starcoder2-window": small("starcoder2", "Starcoder2Config", {"sliding_window": o.WINDOW}),
    "glm4": small("glm4", "Glm4Config", {"head_dim": 64, "pad_token_id": None}),
    "glm4-odd": small("glm4", "Glm4Config", {**o.ODD, "head_dim": 48, "pad_token_id": None}),
    "glm4moe": small("glm4moe", "Glm4MoeConfig", {
        **o.ROUTED, "head_dim": 64, "attention_bias": True, "num_mtp_layers": 0}),
    "glm4moe-odd": small("glm4moe", "Glm4MoeConfig", {
        **o.ROUTED, **o.ODD, "head_dim": 48, "use_qk_norm": True, "n_group": 3, "topk_group": 2, "num_mtp_layers": 0}),
    "gpt-oss": small("gpt-oss", "GptOssConfig", {**o.GPT_OSS, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 64}}),
    "gpt-oss-odd": small("gpt-oss", "GptOssConfig", {
        **o.GPT_OSS, **o.ODD, "head_dim": 48, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "deepseek2-v2": small("deepseek2", "DeepseekV2Config", {**o.DEEPSEEK, "q_lora_rank": None}),
    "deepseek2-v2-groups": small("deepseek2", "DeepseekV2Config", {
        **o.DEEPSEEK, "q_lora_rank": 24, "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2,
        "rope_parameters": {**o.DEEPSEEK_ROPE, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "deepseek2-v3": small("deepseek2", "DeepseekV3Config", {
        **o.DEEPSEEK, "q_lora_rank": 24, "n_group": 3, "topk_group": 2, "norm_topk_prob": True,
        "rope_parameters": {**o.DEEPSEEK_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "glm4moe-lite": small("deepseek2", "Glm4MoeLiteConfig", {
        **{key: o.DEEPSEEK[key] for key in o.DEEPSEEK if key != "first_k_dense_replace"}, "q_lora_rank": 24}),
    "llama4": small("llama4", "Llama4TextConfig", o.LLAMA4),
    "llama4-dense": small("llama4", "Llama4TextConfig", {
        **o.LLAMA4, "interleave_moe_layer_step": 2, "attn_temperature_tuning": False, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}}),
    "seed_oss": small("seed_oss", "SeedOssConfig", {"head_dim": 64, "pad_token_id": None}),
    "seed_oss-odd": small("seed_oss", "SeedOssConfig", {
        **o.ODD, "head_dim": 48, "pad_token_id": None, "attention_out_bias": True, "mlp_bias": True}),
    "ernie4_5": small("ernie4_5", "Ernie4_5Config", {"head_dim": 64, "pad_token_id": None}),
    "ernie4_5-odd": small("ernie4_5", "Ernie4_5Config", {
        **o.ODD, "head_dim": 48, "pad_token_id": None, "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5-moe": small("ernie4_5-moe", "Ernie4_5_MoeConfig", o.ERNIE),
    "ernie4_5-moe-odd": small("ernie4_5-moe", "Ernie4_5_MoeConfig", {**o.ERNIE, **o.ODD, "moe_num_shared_experts": 0}),
    "phimoe": small("phimoe", "PhimoeConfig", {**o.PHIMOE, "attention_bias": True, "lm_head_bias": True}),
    "phimoe-long": small("phimoe", "PhimoeConfig", {
        **o.PHIMOE, "sliding_window": o.WINDOW, "rope_parameters": {
            **o.LONGROPE, "original_max_position_embeddings": 128, "long_mscale": 1.2, "short_mscale": 1.2}}),
    "mimo2": small("mimo2", "MiMoV2FlashConfig", o.MIMO2),
    "mimo2-odd": small("mimo2", "MiMoV2FlashConfig", {
        **o.MIMO2, "num_attention_heads": 4, "hidden_size": 144, "intermediate_size": 88, "v_head_dim": 24,
        "n_group": 3, "topk_group": 2, "attention_value_scale": None}),
    "step35": small("step35", "Step3p7Config", o.STEP35),
    "step35-llama3": small("step35", "Step3p7Config", {
        **o.STEP35, "swiglu_limits": None, "swiglu_limits_shared": None, "rope_parameters": {
            **o.STEP35["rope_parameters"], "full_attention": {
                "rope_type": "llama3", "rope_theta": 1e4, "partial_rotary_factor": 0.5, **LLAMA3_ROPE}}}),
    "exaone-moe": small("exaone-moe", "ExaoneMoeConfig", {
        **o.EXAONE_MOE, "sliding_window": o.WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "exaone-moe-odd": small("exaone-moe", "ExaoneMoeConfig", {
        **o.EXAONE_MOE, **o.ODD, "n_group": 3, "topk_group": 2, "num_hidden_layers": 4, "sliding_window": o.WINDOW}),
    "exaone4": small("exaone4", "Exaone4Config", {
        "sliding_window": o.WINDOW, "pad_token_id": None, "layer_types": ["sliding_attention", "full_attention"]}),
    "exaone4-full": small("exaone4", "Exaone4Config", {
        "sliding_window": None, "pad_token_id": None, "layer_types": ["full_attention"] * 2}),
    "hunyuan-dense": small("hunyuan-dense", "HunYuanDenseV1Config", {"head_dim": 64, "pad_token_id": None}),
    "hunyuan-dense-ntk": small("hunyuan-dense", "HunYuanDenseV1Config", {
        "head_dim": 64, "pad_token_id": None, "rope_parameters": o.NTK}),
    "hunyuan-moe": small("hunyuan-moe", "HunYuanMoEV1Config", {
        "head_dim": 64, "pad_token_id": None, "num_experts": 6, "moe_topk": [2, 2], "rope_parameters": o.NTK}),
    "minimax-m2": small("minimax-m2", "MiniMaxM2Config", {
        "head_dim": 64, "rotary_dim": 32, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "olmoe": small("olmoe", "OlmoeConfig", {"num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": None}),
    "dots1": small("dots1", "Dots1Config", o.ROUTED),
    "dots1-odd": small("dots1", "Dots1Config", {**o.ROUTED, **o.ODD, "n_group": 3, "topk_group": 2}),
    "afmoe": small("afmoe", "AfmoeConfig", {
        "head_dim": 64, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_dense_layers": 1,
        "num_shared_experts": 1, "route_scale": 2.5, "mup_enabled": True, "sliding_window": o.WINDOW,
        "layer_types": ["sliding_attention", "full_attention"]}),
    "lfm2": small("lfm2", "Lfm2Config", o.LFM2),
    "lfm2-odd": small("lfm2", "Lfm2Config", {**o.LFM2, **o.ODD, "conv_L_cache": 4, "block_auto_adjust_ff_dim": True,
                                             "block_multiple_of": 8, "tie_word_embeddings": False}),
    "lfm2moe": small("lfm2moe", "Lfm2MoeConfig", o.LFM2_MOE),
    "granitehybrid": small("granitehybrid", "GraniteMoeHybridConfig", o.GRANITE_HYBRID),
    "granitehybrid-experts": small("granitehybrid", "GraniteMoeHybridConfig", {
        **o.GRANITE_HYBRID, **o.GRANITE_EXPERTS, "shared_intermediate_size": 80}),
    "granitehybrid-odd": small("granitehybrid", "GraniteMoeHybridConfig", {
        **o.GRANITE_HYBRID, **o.ODD, "mamba_n_heads": 6, "mamba_d_state": 32, "mamba_n_groups": 3, "mamba_d_conv": 3,
        "mamba_conv_bias": False, "position_embedding_type": "rope", "shared_intermediate_size": 88}),
    "nemotron_h": small("nemotron_h", "NemotronHConfig", o.NEMOTRON_H),
    "nemotron_h-odd": small("nemotron_h", "NemotronHConfig", {
        **o.NEMOTRON_H, **o.ODD, "head_dim": 48, "mamba_num_heads": 3, "mamba_head_dim": 80, "n_groups": 3,
        "mlp_bias": True, "use_conv_bias": False, "conv_kernel": 3}),
    "nemotron_h_moe": small("nemotron_h_moe", "NemotronHConfig", o.NEMOTRON_H_MOE),
    "nemotron_h_moe-odd": small("nemotron_h_moe", "NemotronHConfig", {
        **o.NEMOTRON_H_MOE, "n_groups": 1, "moe_latent_size": 64, "n_group": 3, "topk_group": 2,
        "norm_topk_prob": False}),
    "falcon-h1": small("falcon-h1", "FalconH1Config", o.FALCON_H1),
    "falcon-h1-odd": small("falcon-h1", "FalconH1Config", {
        **o.FALCON_H1, **o.ODD, "head_dim": 48, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_n_groups": 3,
        "mamba_rms_norm": True, "mamba_conv_bias": False, "attention_bias": True, "mlp_bias": True,
        "tie_word_embeddings": True}),
    "mamba2": small("mamba2", "Mamba2Config", o.MAMBA2),
    "mamba2-odd": small("mamba2", "Mamba2Config", {
        **o.MAMBA2, "hidden_size": 144, "num_heads": 6, "head_dim": 48, "n_groups": 1, "use_conv_bias": False,
        "tie_word_embeddings": True}),
    "mamba": small("mamba", "MambaConfig", o.MAMBA),
    "mamba-odd": small("mamba", "MambaConfig", {
        "hidden_size": 144, "intermediate_size": 176, "state_size": 6, "conv_kernel": 3, "time_step_rank": 11,
        "use_conv_bias": False, "tie_word_embeddings": False}),
    "mamba-falcon": small("mamba", "FalconMambaConfig", {**o.MAMBA, "tie_word_embeddings": False}),
    "jamba": small("jamba", "JambaConfig", o.JAMBA),
    "jamba-odd": small("jamba", "JambaConfig", {
        **o.JAMBA, **o.ODD, "num_hidden_layers": 3, "attn_layer_period": 3, "num_experts": 1, "num_experts_per_tok": 1,
        "mamba_d_state": 6, "mamba_d_conv": 3, "mamba_dt_rank": 11, "mamba_expand": 1, "mamba_conv_bias": False,
        "tie_word_embeddings": True}),
    "qwen35": small("qwen35", "Qwen3_5TextConfig", o.DELTA_NET),
    "qwen35-odd": small("qwen35", "Qwen3_5TextConfig", {
        **o.DELTA_NET, **o.ODD, "head_dim": 48, "linear_num_key_heads": 3, "linear_num_value_heads": 3,
        "linear_value_head_dim": 48, "linear_conv_kernel_dim": 3}),
    "qwen35moe": small("qwen35moe", "Qwen3_5MoeTextConfig",
                       o.DELTA_NET_EXPERTS | {"num_hidden_layers": 4, "layer_types": None}),
    "kimi-linear": replace(
        small("kimi-linear", "KimiLinearConfig", o.KIMI_LINEAR), folder="KimiLinearForCausalLM"),
    "kimi-linear-odd": small("kimi-linear", "KimiLinearConfig", {
        **o.KIMI_LINEAR, **o.ODD, "linear_num_heads": 3, "linear_head_dim": 48, "linear_conv_kernel_dim": 3,
        "q_lora_rank": 24, "n_group": 3, "topk_group": 2, "n_shared_experts": 1}),
    "qwen3next": small("qwen3next", "Qwen3NextConfig", o.DELTA_NET_EXPERTS),
    "qwen2vl": small("qwen2vl", "Qwen2VLConfig", {
        "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": o.MROPE}),
    "qwen2vl-2.5": small("qwen2vl", "Qwen2_5_VLConfig", {
        "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": o.MROPE, "tie_word_embeddings": True}),
    "qwen3vl": small("qwen3vl", "Qwen3VLConfig", o.QWEN3_VL),
    "qwen3vlmoe": small("qwen3vlmoe", "Qwen3VLMoeConfig", {
        **o.QWEN3_VL, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}),
    "hunyuan_vl": small("hunyuan_vl", "HunYuanVLConfig", {
        "head_dim": 64, "pad_token_id": None, "rope_parameters": {
            "rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0,
            "mrope_section": [8, 8, 8, 8]}}),
    "paddleocr": small("paddleocr", "PaddleOCRVLConfig", {
        "head_dim": 64, "pad_token_id": None, "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e5, "mrope_section": [8, 12, 12]}}),
    "gemma": small("gemma", "GemmaConfig", {"head_dim": 64}),
    "gemma-odd": small("gemma", "GemmaConfig", {**o.ODD, "head_dim": 32}),
    "minicpm": replace(small("minicpm", "GraniteConfig", {**o.MINICPM, "tie_word_embeddings": True}),
                       folder="MiniCPMForCausalLM"),
    "minicpm-long": replace(small("minicpm", "GraniteConfig", {
        **o.MINICPM, "tie_word_embeddings": False, "rope_parameters": o.LONGROPE}), folder="MiniCPMForCausalLM"),
    "minicpm-moe": replace(small("minicpm", "GraniteMoeConfig", {
        **o.MINICPM, **o.GRANITE_EXPERTS, "tie_word_embeddings": False}), folder="MiniCPMForCausalLM"),
    "mistral4": small("mistral4", "Mistral4Config", {
        **{key: o.DEEPSEEK[key] for key in o.DEEPSEEK if key != "num_mtp_layers"}, "q_lora_rank": 24,
        "pad_token_id": None, "rope_parameters": {**o.MINISTRAL3_ROPE, "rope_theta": 1e4}}),
    "qwen2moe": small("qwen2moe", "Qwen2MoeConfig", o.QWEN2_MOE),
    "gemma4": small("gemma4", "Gemma4TextConfig", o.GEMMA4),
    "gemma4-unified": small("gemma4", "Gemma4UnifiedTextConfig", {
        key: value for key, value in o.GEMMA4.items() if key != "hidden_size_per_layer_input"}),
    "apertus": small("apertus", "ApertusConfig", {
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3_ROPE}}),
    "arcee": small("arcee", "ArceeConfig", {"head_dim": 64}),
    "arcee-odd": small("arcee", "ArceeConfig", {**o.ODD, "head_dim": 48, "attention_bias": True, "mlp_bias": True}),
    "nemotron": small("nemotron", "NemotronConfig", {"head_dim": 64}),
    "nemotron-odd": small("nemotron", "NemotronConfig", {
        **o.ODD, "head_dim": 48, "attention_bias": True, "mlp_bias": True}),
    "bitnet": small("bitnet", "BitNetConfig", {"tie_word_embeddings": True}),
    "bitnet-silu": small("bitnet", "BitNetConfig", {"hidden_act": "silu"}),
    "phi2": small("phi2", "PhiConfig"),
    "phi2-odd": small("phi2", "PhiConfig", {**o.ODD, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}}),
    "command-r": small("command-r", "CohereConfig", {"logit_scale": 0.25}),
    "gpt2": small("gpt2", "GPT2Config", {"num_key_value_heads": 2}),
    "gpt2-odd": small("gpt2", "GPT2Config", {**o.ODD, "n_inner": 88}),
    "bailingmoe2": small("bailingmoe2", "Glm4MoeConfig", {
        **o.ROUTED, "head_dim": 64, "use_qk_norm": True, "n_group": 3, "topk_group": 2, "num_mtp_layers": 0}),
    "exaone": small("exaone", "LlamaConfig", {
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3_ROPE}}),
    "deci": replace(
        small("deci", "LlamaConfig", {
            "num_hidden_layers": 5, "intermediate_size": 256, "num_key_value_heads": 2, "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 1e4, **LLAMA3_ROPE}}),
        folder="DeciLMForCausalLM"),
    "jais2": small("jais2", "Jais2Config", {"head_dim": 64}),
    "pangu-embedded": replace(
        small("pangu-embedded", "LlamaConfig", {"attention_bias": True}), folder="PanguEmbeddedForCausalLM"),
    "maincoder": replace(
        small("maincoder", "HunYuanDenseV1Config", {"head_dim": 64, "pad_token_id": None}),
        folder="MaincoderForCausalLM"),
    "plamo3": replace(small("plamo3", "LlamaConfig", o.PLAMO3), folder="Plamo3ForCausalLM"),
    "plamo3-odd": replace(
        small("plamo3", "LlamaConfig", {
            **o.PLAMO3, **o.ODD, "head_dim": 48, "sliding_window_pattern": 3, "tie_word_embeddings": False}),
        folder="Plamo3ForCausalLM"),
    "rwkv7": replace(small("rwkv7", "LlamaConfig", o.RWKV7), folder="RWKV7ForCausalLM"),
    "rwkv7-odd": replace(
        small("rwkv7", "LlamaConfig", {
            **o.RWKV7, **o.ODD, "head_dim": 48, "norm_eps": 64e-5 / 48, "decay_low_rank_dim": 11, "a_low_rank_dim": 7,
            "v_low_rank_dim": 5, "gate_low_rank_dim": 13, "tie_word_embeddings": True}),
        folder="RWKV7ForCausalLM"),
    "bailingmoe": replace(
        small("bailingmoe", "Qwen2MoeConfig", {
            **o.QWEN2_MOE, "qkv_bias": False, "norm_topk_prob": True, "shared_expert_intermediate_size": 96,
            "num_attention_heads": 4, "num_key_value_heads": 2}),
        folder="BailingMoeForCausalLM"),
    "gemma3n": small("gemma3n", "Gemma3nTextConfig", o.GEMMA3N),
    "gemma3n-odd": small("gemma3n", "Gemma3nTextConfig", {
        **o.GEMMA3N, **o.ODD, "head_dim": 48, "altup_num_inputs": 3, "num_kv_shared_layers": 0,
        "intermediate_size": [88, 88, 88, 88, 96, 96]}),
    "gemma4-e": small("gemma4", "Gemma4TextConfig", o.GEMMA4_SMALL),
    "gemma4-moe": small("gemma4", "Gemma4TextConfig", o.GEMMA4_EXPERTS),
}
"""A case or more for each class."""


_WIDE = {
    "num_attention_heads": 4, "v_head_dim": 64, "linear_value_head_dim": 64, "mamba_head_dim": 64,
    "num_sliding_attention_heads": 8, "linear_head_dim": 64, "linear_num_heads": 4, **dict.fromkeys((
        "hidden_size", "intermediate_size", "intermediate_size_mlp", "moe_intermediate_size", "kv_lora_rank",
        "shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim",
        "q_lora_rank", "qk_nope_head_dim",
        "hidden_size_per_layer_input", "laurel_rank", "d_model", "ffn_hidden_size",
        "moe_shared_expert_intermediate_size", "time_step_rank", "mamba_dt_rank"), 256),
}
"""Sizes of which every row of a matrix is whole blocks of 256."""


def wide(options: dict[str, Any]) -> dict[str, Any]:
    """A case's options with other sizes, as far as it has these."""
    heads = {"num_key_value_heads": 4} if options.get("num_key_value_heads") == options["num_attention_heads"] else {}
    sizes = {key: size for key, size in _WIDE.items() if options.get(key)}
    of_scans = {"head_dim": 64} if options.get("state_size") else {}
    return options | sizes | heads | of_scans


REPEATED = ("qwen2-window", "qwen3moe-window", "lfm2moe", "qwen35moe", "qwen3next", "granitehybrid-experts")
"""Cases that differ from others in what is read only."""


def is_slow(name: str, device: str) -> bool:
    """Whether a cell repeats what others have, or would compile kernels of sizes that no other test has.

    On the CPU they all would: by default `test_cpu_model.py` and op cases hold its kernels to the reference.
    """
    return device == "cpu" or name.endswith("-odd") or name in REPEATED
