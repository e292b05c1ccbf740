"""Folders of classes that transformers does not have, made of classes that compute the same."""

from __future__ import annotations

import re
from typing import Any

import torch

import arctic_layers
import grove_layers
import jais_layers
import openelm_layers
import small_thinker
from tests.models.published_layouts import LLAMAS, Remake, Tensors, called, deepseek, joined, renamed, stacked_rows


def internlm2(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    def join(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads, size = config["num_key_value_heads"], config["head_dim"]
        parts = (x.reshape(heads, -1, size, x.shape[1]) for x in (q, k, v))
        return torch.cat(list(parts), dim=1).reshape(-1, q.shape[1])

    return renamed(joined(tensors, join, "attention.wqkv"), {
        "embed_tokens": "tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    }), {"architectures": ["InternLM2ForCausalLM"], "bias": False}


def chatglm(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of GLM, whose class is the same model with other names."""
    words = {
        "num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size", "head_dim": "kv_channels",
        "vocab_size": "padded_vocab_size", "rms_norm_eps": "layernorm_epsilon", "num_key_value_heads":
        "multi_query_group_num", "max_position_embeddings": "seq_length",
    }
    changes = {
        "architectures": ["ChatGLMModel"], **{new: config[old] for old, new in words.items()}, **dict.fromkeys(words),
        "rope_parameters": None, "rope_ratio": config["rope_parameters"]["rope_theta"] / 1e4, "hidden_act": None,
        "rmsnorm": True, "post_layer_norm": True, "add_bias_linear": False, "multi_query_attention": True,
        "original_rope": True, "apply_residual_connection_post_layernorm": False,
    }
    joined = stacked_rows(
        tensors,
        {
            f"self_attention.query_key_value.{kind}": tuple(f"self_attn.{n}_proj.{kind}" for n in "qkv")
            for kind in ("weight", "bias")
        },
    )
    return renamed(joined, {
        "model.embed_tokens": "transformer.embedding.word_embeddings", "lm_head": "transformer.output_layer",
        "model.norm": "transformer.encoder.final_layernorm", "model.layers": "transformer.encoder.layers",
        "self_attn.o_proj": "self_attention.dense", "mlp.gate_up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }), changes


def baichuan(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with rope."""
    tensors = joined(tensors, lambda *parts: torch.cat(parts), "self_attn.W_pack")
    return tensors, {"architectures": ["BaiChuanForCausalLM"], "num_key_value_heads": None, "rope_parameters": None}


def baichuan_13b(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with ALiBi."""
    tensors, changes = baichuan(tensors, config)
    length = {"model_max_length": config["max_position_embeddings"], "max_position_embeddings": None}
    return tensors, changes | length | {"architectures": ["BaichuanForCausalLM"]}


def qwen(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of Qwen 2."""
    stacked = stacked_rows(tensors, {
        f"attn.c_attn.{kind}": tuple(f"self_attn.{n}_proj.{kind}" for n in "qkv") for kind in ("weight", "bias")
    })
    changes = {
        "architectures": ["QWenLMHeadModel"], "layer_norm_epsilon": config["rms_norm_eps"], "rms_norm_eps": None,
        "intermediate_size": 2 * config["intermediate_size"], "kv_channels": 64, "rotary_emb_base": 10000,
        "rope_parameters": None, "num_key_value_heads": None, "use_dynamic_ntk": True, "use_logn_attn": True,
        "seq_length": config["max_position_embeddings"], "max_position_embeddings": 512, "rotary_pct": 1.0,
        "hidden_act": None, "no_bias": True,
    }
    return renamed(stacked, {
        "model.layers": "transformer.h", "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f",
        "self_attn.o_proj": "attn.c_proj", "mlp.down_proj": "mlp.c_proj", "mlp.gate_proj": "mlp.w2",
        "mlp.up_proj": "mlp.w1", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    }), changes


def orion(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of StableLM with rope on whole heads."""
    changes = {"rms_norm_eps": config["layer_norm_eps"], "layer_norm_eps": None, "rope_parameters": None}
    return tensors, {"architectures": ["OrionForCausalLM"], **changes}


def codeshell(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of StarCoder 2."""
    stacked = stacked_rows(tensors, {
        f"attn.c_attn.{kind}": tuple(f"self_attn.{n}_proj.{kind}" for n in "qkv") for kind in ("weight", "bias")
    })
    words = {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions", "intermediate_size": "n_inner", "norm_epsilon": "layer_norm_epsilon",
        "num_key_value_heads": "num_query_groups", "hidden_act": "activation_function",
    }
    changes = {new: config[old] for old, new in words.items()} | dict.fromkeys(words)
    changes |= {"architectures": ["CodeShellForCausalLM"], "group_query_attention": True}
    stacked["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    return renamed(stacked, {
        "model.layers": "transformer.h", "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f",
        "self_attn.o_proj": "attn.c_proj", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    }), changes | {"position_embedding_type": "rope", "tie_word_embeddings": False}


def arctic(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers."""
    return tensors, {
        "architectures": ["ArcticForCausalLM"], "num_local_experts": arctic_layers.EXPERTS, "use_residual": True,
        "num_experts_per_tok": arctic_layers.USED, "parallel_attn_mlp_res": True, "moe_layer_frequency": 1,
    }


def plamo(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers, whose heads take turns with heads of keys."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]

    def moved(name: str, x: torch.Tensor) -> torch.Tensor:
        if name.endswith("q_proj.weight"):
            return x.reshape(groups, heads // groups, -1, x.shape[1]).swapaxes(0, 1).reshape(x.shape)
        if name.endswith("o_proj.weight"):
            return x.reshape(len(x), groups, heads // groups, -1).swapaxes(1, 2).reshape(x.shape)
        return x

    in_turn = {name: moved(name, x) for name, x in tensors.items()}
    changes = {"architectures": ["PlamoForCausalLM"], "n_shared_head": heads // groups, "num_key_value_heads": heads}
    return renamed(in_turn, {"model.layers.": "model.layers.layers."}), changes


def plamo2(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers; what only Llama says goes."""
    changes = {"architectures": ["Plamo2ForCausalLM"], **dict.fromkeys(LLAMAS), "head_dim": None,
               "rope_theta": config["rope_parameters"]["rope_theta"]}
    return renamed(tensors, {"model.layers.": "model.layers.layers."}), changes


def refact(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with ALiBi and layer norms."""
    words = {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions", "rms_norm_eps": "layer_norm_epsilon",
    }
    changes = {new: config[old] for old, new in words.items()} | dict.fromkeys(words) | dict.fromkeys(
        ("num_key_value_heads", "intermediate_size", "rope_parameters", "hidden_act", "head_dim"))
    changes |= {"architectures": ["GPTRefactForCausalLM"], "multi_query": True, "n_inner": 3 * 90}
    stacked = stacked_rows(tensors, {
        "attn.kv.weight": ("self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        "mlp.gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    })
    return renamed(stacked, {
        "model.layers": "transformer.h", "model.embed_tokens": "transformer.wte", "model.norm": "ln_f",
        "self_attn.q_proj": "attn.q", "self_attn.o_proj": "attn.c_proj", "mlp.down_proj": "mlp.c_proj",
        "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    }), changes


def jais(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers; outputs of matrices are columns."""
    words = {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions", "rms_norm_eps": "layer_norm_epsilon", "intermediate_size": "n_inner",
    }
    changes = {new: config[old] for old, new in words.items()} | dict.fromkeys(words) | dict.fromkeys(
        ("num_key_value_heads", "rope_parameters", "hidden_act", "head_dim"))
    changes |= {
        "architectures": ["JAISLMHeadModel"], "activation_function": "swiglu", "position_embedding_type": "alibi",
        "mup_embeddings_scale": jais_layers.EMBEDDINGS, "mup_output_alpha": 2 * jais_layers.LOGITS,
        "mup_width_scale": 0.5, "mup_scale_qk_dot_by_d": True, "alibi_scaling": None,
    }
    stacked = stacked_rows(tensors, {
        f"attn.c_attn.{kind}": tuple(f"self_attn.{n}_proj.{kind}" for n in "qkv") for kind in ("weight", "bias")
    })
    stacked = {name: x.T if "layers." in name and x.ndim == 2 else x for name, x in stacked.items()}
    slopes = {"transformer.relative_pe.slopes": torch.ones(config["num_attention_heads"], 1)}
    return slopes | renamed(stacked, {
        "model.layers": "transformer.h", "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f",
        "self_attn.o_proj": "attn.c_proj", "mlp.down_proj": "mlp.c_proj", "mlp.gate_proj": "mlp.c_fc2",
        "mlp.up_proj": "mlp.c_fc", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    }), changes


def grovemoe(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Qwen 3 with other layers."""
    return tensors, {
        "architectures": ["GroveMoeForCausalLM"], "num_experts": grove_layers.EXPERTS, "norm_topk_prob": True,
        "num_experts_per_tok": grove_layers.USED, "moe_intermediate_size": config["intermediate_size"],
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    }


def arwkv7(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers. The first has what mixes values, and all have shares for a gate, too."""
    width, out = config["hidden_size"], dict[str, torch.Tensor]()
    for name, x in tensors.items():
        plain = re.sub(r"_lora\.lora\.2\.bias", "0", re.sub(r"_lora\.lora\.(0|2)\.weight", _factor, name))
        for new, old in {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}.items():
            plain = plain.replace(f"time_mixer.{old}", f"time_mixer.{new}")
        is_mixed = x.ndim == 1 and "time_mixer." in name and "g_norm" not in name
        out[plain.replace("g_norm", "ln_x")] = x.T.contiguous() if "weight" in name and "_lora" in name else (
            x[None, None] if is_mixed else x)
    first, shapes = "model.layers.0.self_attn.time_mixer.", {"v0": (1, 1, width), "v1": (width, 32), "v2": (32, width)}
    out |= {first + name: torch.ones(shape) for name, shape in shapes.items()}
    words = ("rope_parameters", "attention_bias", "mlp_bias", "pretraining_tp", "head_dim", "num_key_value_heads",
             "decay_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim", "gate_low_rank_dim", "norm_eps")
    return out, {
        "architectures": ["RwkvHybridForCausalLM"], "model_type": "rwkv_hybrid", "head_size": config["head_dim"],
        "num_wkv_heads": width // config["head_dim"], "wkv_version": 7, "wkv_layers": "full", "head_size_divisor": 8,
        **dict.fromkeys(words),
    }


def _factor(found: re.Match[str]) -> str:
    return "1" if found[1] == "0" else "2"


def rwkv6(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers; what only Llama says goes."""
    words = ("rope_parameters", "attention_bias", "mlp_bias", "pretraining_tp", "rms_norm_eps", "head_dim",
             "num_key_value_heads", "hidden_act")
    ends = (".time_decay", *(f".time_maa_{n}" for n in "xwkvrg"))
    axes = {name: x[None, None] if name.endswith(ends) else x for name, x in tensors.items()}
    return renamed(axes, {"model.": "rwkv.", "lm_head": "head"}), {
        "architectures": ["Rwkv6ForCausalLM"], "model_type": "rwkv6", "attention_hidden_size": config["hidden_size"],
        "head_size_divisor": 8, "rescale_every": 6, **dict.fromkeys(words),
    }


def openelm(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Qwen 3 with other layers."""
    words = {
        "hidden_size": "model_dim", "num_hidden_layers": "num_transformer_layers",
        "max_position_embeddings": "max_context_length",
    }
    changes = {new: config[old] for old, new in words.items()} | dict.fromkeys(words) | dict.fromkeys(
        ("num_attention_heads", "num_key_value_heads", "intermediate_size", "rope_parameters", "hidden_act",
         "tie_word_embeddings"))
    changes |= {
        "architectures": ["OpenELMForCausalLM"], "num_query_heads": openelm_layers.HEADS,
        "num_kv_heads": openelm_layers.KEYS, "ffn_multipliers": openelm_layers.TIMES,
        "ffn_dim_divisor": openelm_layers.DIVISOR, "rope_freq_constant": 10000, "activation_fn_name": "swish",
        "share_input_output_layers": True,
    }
    stacked = stacked_rows(tensors, {
        "attn.qkv_proj.weight": tuple(f"self_attn.{n}_proj.weight" for n in "qkv"),
        "ffn.proj_1.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    })
    return renamed(stacked, {
        "model.layers": "transformer.layers", "model.embed_tokens": "transformer.token_embeddings",
        "model.norm": "transformer.norm", "self_attn.o_proj": "attn.out_proj", "self_attn.": "attn.",
        "mlp.down_proj": "ffn.proj_2", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }), changes


def smallthinker(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers; those that are tied have no windows."""
    n, full = config["num_hidden_layers"], config["tie_word_embeddings"]
    layout = [int(i % 4 > 0) for i in range(n)]
    return tensors, {
        "architectures": ["SmallThinkerForCausalLM"], "moe_num_primary_experts": small_thinker.EXPERTS,
        "moe_num_active_primary_experts": small_thinker.USED, "moe_ffn_hidden_size": config["intermediate_size"],
        "moe_primary_router_apply_softmax": full, "rope_layout": [1] * n if full else layout,
        "sliding_window_layout": [0] * n if full else layout,
        "sliding_window_size": config.get("layers_window", small_thinker.WINDOW),
        "moe_layer_layout": [1] * n, "intermediate_size": None, "hidden_act": None,
    }


REMAKES: dict[str, Remake] = {
    "internlm2": internlm2,
    "deepseek": deepseek,
    "ChatGLMModel": chatglm,
    "BaiChuanForCausalLM": baichuan,
    "BaichuanForCausalLM": baichuan_13b,
    "QWenLMHeadModel": qwen,
    "OrionForCausalLM": orion,
    "CodeShellForCausalLM": codeshell,
    "SmallThinkerForCausalLM": smallthinker,
    "OpenELMForCausalLM": openelm,
    "ArcticForCausalLM": arctic,
    "PlamoForCausalLM": plamo,
    "Plamo2ForCausalLM": plamo2,
    "GPTRefactForCausalLM": refact,
    "JAISLMHeadModel": jais,
    "GroveMoeForCausalLM": grovemoe,
    "RwkvHybridForCausalLM": arwkv7,
    "Rwkv6ForCausalLM": rwkv6,
    **{name: called(name) for name in ("XverseForCausalLM", "PLMForCausalLM")},
}
"""As in `tests.models.published_layouts`."""
