"""Tiny random checkpoints of every class of this package, in the tables that Octavo's tests look them up in.

With this module imported, `TABLE` of `tests.models.tiny_checkpoints` has these cases too.
"""

from __future__ import annotations

from dataclasses import replace

import torch

import legacy_layouts
from alibi import attend_by_distance, put_layer_norms
from arctic_layers import rebuild_arctic
from arwkv7_layers import rebuild_arwkv7
from grove_layers import rebuild_grove
from jais_layers import rebuild_jais
from openelm_layers import rebuild_openelm
from plamo2_layers import rebuild_plamo2
from plamo_layers import rebuild_plamo
from plm_layers import rebuild_plm
from rwkv6_layers import rebuild_rwkv6
from small_thinker import rebuild_small_thinker
from tests.models import checkpoints, published_layouts, tiny_checkpoints
from tests.models.checkpoints import Case, halved_gate
from tests.models.tiny_checkpoints import small
from tests.models.tiny_options import LONGROPE, ODD, QWEN2_MOE, RWKV7, WINDOW

PLM = {
    "kv_lora_rank": 48, "q_lora_rank": None, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40,
    "num_key_value_heads": 2, "first_k_dense_replace": 2, "hidden_act": "relu2", "tie_word_embeddings": True,
}
JAIS = {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}
MINICPM3 = {
    "kv_lora_rank": 48, "q_lora_rank": 24, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40,
    "num_key_value_heads": 2, "pad_token_id": None,
}
PLAMO2 = {
    "num_hidden_layers": 4, "hidden_size_per_head": 64, "attention_window_size": WINDOW, "full_attention_idx": [3],
    "rope_theta": 1e4, "rope_local_theta": 5e3, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_num_heads": 4,
    "mamba_step": 2, "mamba_enabled": True, "mamba_chunk_size": 256, "tie_word_embeddings": True,
}
ARWKV7 = {
    **RWKV7, "decay_low_rank_dim": 64, "a_low_rank_dim": 64, "v_low_rank_dim": 32, "gate_low_rank_dim": 128,
    "wkv_has_gate": True, "wkv_has_group_norm": True,
}
RWKV6 = {"num_hidden_layers": 3, "head_size": 64, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False}

CASES: dict[str, Case] = {
    "minicpm3": small("minicpm3", "MiniCPM3Config", MINICPM3),
    "minicpm3-long": small("minicpm3", "MiniCPM3Config", {
        **MINICPM3, "tie_word_embeddings": False, "rope_parameters": {
            **LONGROPE, "short_factor": [1 + i / 8 for i in range(8)], "long_factor": [2 + i / 2 for i in range(8)]}}),
    "stablelm": small("stablelm", "StableLmConfig", {"use_qkv_bias": True}),
    "stablelm-odd": small("stablelm", "StableLmConfig", {**ODD, "use_parallel_residual": True}),
    "gptneox": small("gptneox", "GPTNeoXConfig"),
    "gptneox-odd": small("gptneox", "GPTNeoXConfig", {**ODD, "use_parallel_residual": False}),
    "falcon": small("falcon", "FalconConfig"),
    "falcon-new": small("falcon", "FalconConfig", {
        "new_decoder_architecture": True, "num_kv_heads": 2, "num_attention_heads": 4, "ffn_hidden_size": 96}),
    "falcon-odd": small("falcon", "FalconConfig", {
        **ODD, "new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "bias": True}),
    "internlm2": small("internlm2", "LlamaConfig", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "internlm2-odd": small("internlm2", "LlamaConfig", ODD),
    "deepseek": small("deepseek", "Qwen2MoeConfig", {
        **QWEN2_MOE, "qkv_bias": False, "mlp_only_layers": [0], "shared_expert_intermediate_size": 96}),
    "starcoder": small("starcoder", "GPTBigCodeConfig"),
    "olmo": small("olmo", "OlmoConfig"),
    "olmo-clipped": small("olmo", "OlmoConfig", {"clip_qkv": 0.5}),
    "chatglm": small("chatglm", "GlmConfig", {"head_dim": 64, "pad_token_id": None}),
    "chatglm-first": replace(
        small("chatglm", "GlmConfig", {
            "head_dim": 64, "pad_token_id": None, "rope_parameters": {
                "rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5}}),
        folder="ChatGLMModel"),
    "baichuan": replace(
        small("baichuan", "LlamaConfig", {"num_key_value_heads": 2}), folder="BaiChuanForCausalLM"),
    "baichuan-distance": replace(
        small("baichuan", "LlamaConfig", {"num_attention_heads": 4, "num_key_value_heads": 4}),
        folder="BaichuanForCausalLM"),
    "qwen": replace(small("qwen", "Qwen2Config", {"num_key_value_heads": 2}), folder="QWenLMHeadModel"),
    "gptj": small("gptj", "GPTJConfig", {"rotary_dim": 32}),
    "gptj-odd": small("gptj", "GPTJConfig", {**ODD, "n_inner": 88, "rotary_dim": 16}),
    "orion": replace(
        small("orion", "StableLmConfig", {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
        folder="OrionForCausalLM"),
    "xverse": replace(small("xverse", "LlamaConfig", {"num_key_value_heads": 2}), folder="XverseForCausalLM"),
    "codeshell": replace(small("codeshell", "Starcoder2Config"), folder="CodeShellForCausalLM"),
    "smallthinker": replace(
        small("smallthinker", "LlamaConfig", {"num_hidden_layers": 3, "head_dim": 64}),
        folder="SmallThinkerForCausalLM"),
    "smallthinker-full": replace(
        small("smallthinker", "LlamaConfig", {"head_dim": 64, "tie_word_embeddings": True}),
        folder="SmallThinkerForCausalLM"),
    "dbrx": small("dbrx", "DbrxConfig", {
        "num_attention_heads": 4, "d_model": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
        "attn_config": {"clip_qkv": 0.5, "kv_n_heads": 2, "rope_theta": 5e4},
        "ffn_config": {"ffn_hidden_size": 256, "moe_num_experts": 6, "moe_top_k": 2}}),
    "openelm": replace(
        small("openelm", "Qwen3Config", {"num_hidden_layers": 3, "head_dim": 64, "tie_word_embeddings": True}),
        folder="OpenELMForCausalLM"),
    "arctic": replace(
        small("arctic", "LlamaConfig", {"num_attention_heads": 4, "num_key_value_heads": 2}),
        folder="ArcticForCausalLM"),
    "plamo": replace(
        small("plamo", "LlamaConfig", {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2}),
        folder="PlamoForCausalLM"),
    "plamo2": replace(small("plamo2", "LlamaConfig", PLAMO2), folder="Plamo2ForCausalLM"),
    "plamo2-odd": replace(
        small("plamo2", "LlamaConfig", {
            **PLAMO2, **ODD, "num_hidden_layers": 3, "hidden_size_per_head": 48, "full_attention_idx": None,
            "mamba_d_state": 32, "mamba_d_conv": 3, "mamba_num_heads": 3, "mamba_step": 4, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False}),
        folder="Plamo2ForCausalLM"),
    "refact": replace(
        small("refact", "LlamaConfig", {"num_attention_heads": 4, "intermediate_size": 256}),
        folder="GPTRefactForCausalLM"),
    "grovemoe": replace(small("grovemoe", "Qwen3Config", {"head_dim": 64}), folder="GroveMoeForCausalLM"),
    "arwkv7": replace(small("arwkv7", "LlamaConfig", ARWKV7), folder="RwkvHybridForCausalLM"),
    "arwkv7-odd": replace(
        small("arwkv7", "LlamaConfig", {
            **ARWKV7, **ODD, "head_dim": 48, "wkv_has_gate": False, "wkv_has_group_norm": False,
            "tie_word_embeddings": True}),
        folder="RwkvHybridForCausalLM"),
    "rwkv6": replace(small("rwkv6", "LlamaConfig", RWKV6), folder="Rwkv6ForCausalLM"),
    "rwkv6-odd": replace(
        small("rwkv6", "LlamaConfig", {**RWKV6, **ODD, "head_size": 48, "tie_word_embeddings": True}),
        folder="Rwkv6ForCausalLM"),
    "plm": replace(small("plm", "DeepseekV2Config", PLM), folder="PLMForCausalLM"),
    "jais": replace(small("jais", "LlamaConfig", JAIS), folder="JAISLMHeadModel"),
    "jais-tied": replace(
        small("jais", "LlamaConfig", {**JAIS, "tie_word_embeddings": True}), folder="JAISLMHeadModel"),
    "mpt": small("mpt", "MptConfig", {"num_attention_heads": 4, "max_seq_len": 256}),
    "mpt-clipped": small("mpt", "MptConfig", {
        "num_attention_heads": 4, "max_seq_len": 256, "attn_config": {"clip_qkv": 0.5}}),
    "mpt-odd": small("mpt", "MptConfig", {**ODD, "max_seq_len": 256}),
    "bloom": small("bloom", "BloomConfig", {"num_attention_heads": 4}),
    "bloom-odd": small("bloom", "BloomConfig", ODD),
}
"""A case or more for each class."""


def larger_scores(name: str, p: torch.Tensor) -> None:
    """So that scores differ."""
    if name.endswith(("q_weight", "k_weight")):
        p.mul_(p.shape[-1] ** 0.5)


checkpoints.ADJUSTED.update(deepseek=halved_gate, plamo2=larger_scores)
checkpoints.REBUILDS.update({
    "plamo": rebuild_plamo, "plamo2": rebuild_plamo2, "arctic": rebuild_arctic, "openelm": rebuild_openelm,
    "arwkv7": rebuild_arwkv7, "rwkv6": rebuild_rwkv6, "refact": put_layer_norms, "grovemoe": rebuild_grove,
    "smallthinker": lambda model: rebuild_small_thinker(model, windows=not model.config.tie_word_embeddings),
    "plm": rebuild_plm, "jais": rebuild_jais, "BaichuanForCausalLM": attend_by_distance,
    "GPTRefactForCausalLM": attend_by_distance,
})
published_layouts.REMAKES.update(legacy_layouts.REMAKES)
tiny_checkpoints.TABLE.update(CASES)
