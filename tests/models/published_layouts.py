"""Folders of classes that transformers does not have, made of classes that compute the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.models.deci_layers import BLOCKS

LLAMAS = ("rope_parameters", "hidden_act", "attention_bias", "mlp_bias", "pretraining_tp")
Tensors = dict[str, torch.Tensor]
Remake = Callable[[Tensors, dict[str, Any]], tuple[Tensors, dict[str, Any]]]


def renamed(tensors: Tensors, names: dict[str, str]) -> Tensors:
    """Tensors with each part of a name that is in `names` as that says."""
    out: Tensors = {}
    for name, tensor in tensors.items():
        new = reduce(lambda found, pair: found.replace(*pair), names.items(), name)
        out[new] = tensor.contiguous()
    return out


def joined(tensors: Tensors, join: Callable[..., torch.Tensor], name: str) -> Tensors:
    """q, k and v of each layer as one matrix of that `name`."""
    out = dict(tensors)
    for i in range(sum(key.endswith("q_proj.weight") for key in tensors)):
        parts = [out.pop(f"model.layers.{i}.self_attn.{n}_proj.weight") for n in "qkv"]
        out[f"model.layers.{i}.{name}.weight"] = join(*parts)
    return out


def exaone(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    changes = {
        "architectures": ["ExaoneForCausalLM"], "num_layers": config["num_hidden_layers"], "num_hidden_layers": None,
        "activation_function": "silu", "hidden_act": None, "layer_norm_epsilon": config["rms_norm_eps"],
        "rms_norm_eps": None,
    }
    return renamed(tensors, {
        "model.layers": "transformer.h", "model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f",
        "self_attn.o_proj": "attn.attention.out_proj", "self_attn": "attn.attention", "mlp.gate_proj": "mlp.c_fc_0",
        "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
    }), changes


def bailingmoe2(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of GLM-4.5 with norms of q and k."""
    changes = {
        "architectures": ["BailingMoeV2ForCausalLM"], "num_experts": config["n_routed_experts"],
        "n_routed_experts": None, "num_shared_experts": config["n_shared_experts"], "n_shared_experts": None,
        "score_function": "sigmoid", "norm_head": False, "moe_router_enable_expert_bias": True,
    }
    tensors = joined(tensors, lambda *parts: torch.cat(parts), "attention.query_key_value")
    return renamed(tensors, {
        "embed_tokens": "word_embeddings", "self_attn.o_proj": "attention.dense",
        "self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm",
        "gate.e_score_correction_bias": "gate.expert_bias",
    }), changes


def deepseek(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of Qwen2-MoE without biases, whose expert for all has a gate of one half."""
    kept = {name: x for name, x in tensors.items() if "shared_expert_gate" not in name}
    halved = {name: x / 2 for name, x in kept.items() if name.endswith("shared_expert.down_proj.weight")}
    changes = {
        "architectures": ["DeepseekForCausalLM"], "n_routed_experts": config["num_experts"], "num_experts": None,
        "n_shared_experts": config["shared_expert_intermediate_size"] // config["moe_intermediate_size"],
        "first_k_dense_replace": 1, "scoring_func": "softmax", "moe_layer_freq": 1,
    }
    return renamed(kept | halved, {"shared_expert.": "shared_experts."}), changes


def stacked_rows(tensors: Tensors, names: dict[str, tuple[str, ...]]) -> Tensors:
    """Tensors with those of each layer whose names end so as one, the rows of the first above those of the others."""
    out = dict(tensors)
    for new, parts in names.items():
        for name in [n for n in tensors if n.endswith(f".{parts[0]}")]:
            stem = name.removesuffix(parts[0])
            out[stem + new] = torch.cat([out.pop(stem + part) for part in parts])
    return out


def bailingmoe(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of Qwen2-MoE as DeepSeek's; columns of the output matrix have a length of 1 only when they are multiplied."""
    tensors, changes = deepseek(tensors, config)
    changes |= {
        "architectures": ["BailingMoeForCausalLM"], "num_experts": config["num_experts"], "n_routed_experts": None,
        "num_shared_experts": changes["n_shared_experts"], "n_shared_experts": None, "first_k_dense_replace": 0,
        "norm_head": True, "use_bias": False, "use_qkv_bias": False,
    }
    tensors = joined(tensors, lambda *parts: torch.cat(parts), "attention.query_key_value")
    tensors["lm_head.weight"] = tensors["lm_head.weight"] * torch.linspace(0.5, 3, config["hidden_size"])
    return renamed(tensors, {"embed_tokens": "word_embeddings", "self_attn.o_proj": "attention.dense"}), changes


def maincoder(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of Hunyuan; rope is on neighbours."""

    def turned(name: str, x: torch.Tensor) -> torch.Tensor:
        if not name.endswith(("q_proj.weight", "k_proj.weight", "query_layernorm.weight", "key_layernorm.weight")):
            return x
        return x.reshape(-1, 2, config["head_dim"] // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

    moved = {name: turned(name, x) for name, x in tensors.items()}
    names = {"query_layernorm": "q_norm", "key_layernorm": "k_norm"}
    return renamed(moved, names), {"architectures": ["MaincoderForCausalLM"]}


def called(name: str) -> Remake:
    """The same model by another name."""
    return lambda tensors, config: (tensors, {"architectures": [name]})


def plamo3(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    changes = {"architectures": ["Plamo3ForCausalLM"], **dict.fromkeys(LLAMAS), "hidden_activation": "swiglu",
               "rope_theta": config["rope_parameters"]["rope_theta"]}
    return renamed(tensors, {"model.layers.": "model.layers.layers."}), changes


def kimi_linear(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """As its authors have it: transformers writes dense layers under another name, and kinds of layers otherwise."""
    words = {"linear_head_dim": "head_dim", "linear_num_heads": "num_heads",
             "linear_conv_kernel_dim": "short_conv_kernel_size"}
    listed = {name: [i + 1 for i, kind in enumerate(config["layer_types"]) if kind == f"{of}_attention"]
              for name, of in (("kda_layers", "linear"), ("full_attn_layers", "full"))}
    return {re.sub(r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj", name): x for name, x in tensors.items()}, {
        "linear_attn_config": {new: config[old] for old, new in words.items()} | listed, "mla_use_nope": True,
        "first_k_dense_replace": config["mlp_layer_types"].count("dense"), "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid", "use_grouped_topk": True, "num_nextn_predict_layers": 0,
        **dict.fromkeys((*words, "layer_types", "mlp_layer_types")),
    }


def rwkv7(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers; what only Llama says goes."""
    words = ("rope_parameters", "attention_bias", "mlp_bias", "pretraining_tp", "rms_norm_eps", "num_attention_heads",
             "num_key_value_heads")
    mixed = {name: x[None, None] for name, x in tensors.items() if ".attn.x_" in name}
    return tensors | mixed, {
        "architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7", "hidden_act": "sqrelu", "norm_first": True,
        "norm_bias": True, "value_dim": [config["hidden_size"]] * config["num_hidden_layers"], "hidden_ratio": 4.0,
        "num_heads": config["hidden_size"] // config["head_dim"], "attn_mode": "chunk", **dict.fromkeys(words),
    }


def deci(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of a Llama with other layers."""
    return tensors, {
        "architectures": ["DeciLMForCausalLM"], "block_configs": BLOCKS[: config["num_hidden_layers"]],
        "num_key_value_heads": None, "intermediate_size": None,
    }


def minicpm(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Of Granite, which has the numbers themselves, with experts or without."""
    tensors = dict(tensors)
    for name in [name for name in tensors if ".block_sparse_moe." in name]:
        stem, part = name.split(".block_sparse_moe.")
        rows = tensors.pop(name)
        if part == "router.layer.weight":
            tensors[f"{stem}.mlp.gate.weight"] = rows
            continue
        for i, expert in enumerate(rows):
            parts = zip(("w1", "w3"), expert.chunk(2), strict=True) if part.startswith("input") else (("w2", expert),)
            tensors |= {f"{stem}.mlp.experts.{i}.{to}.weight": matrix.clone() for to, matrix in parts}
    numbers = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier")
    return tensors, {
        "architectures": ["MiniCPMForCausalLM"], "scale_emb": config["embedding_multiplier"], **dict.fromkeys(numbers),
        "scale_depth": config["residual_multiplier"] * config["num_hidden_layers"] ** 0.5,
        "dim_model_base": config["hidden_size"] / config["logits_scaling"],
        "num_experts": config.get("num_local_experts"), "num_local_experts": None,
    }


REMAKES: dict[str, Remake] = {
    "exaone": exaone,
    "bailingmoe2": bailingmoe2,
    "DeciLMForCausalLM": deci,
    "BailingMoeForCausalLM": bailingmoe,
    "MaincoderForCausalLM": maincoder,
    "Plamo3ForCausalLM": plamo3,
    "RWKV7ForCausalLM": rwkv7,
    "MiniCPMForCausalLM": minicpm,
    "KimiLinearForCausalLM": kimi_linear,
    "PanguEmbeddedForCausalLM": called("PanguEmbeddedForCausalLM"),
}
"""By architecture, or by class where transformers has another of the architecture: tensors and config.json of a folder
as that class has them, and keys that are to change."""


def remake(folder: Path, arch: str) -> None:
    """Make a folder one of a class, or of a class of the architecture, if transformers has none."""
    if arch not in REMAKES:
        return
    path, where = folder / "model.safetensors", folder / "config.json"
    config = json.loads(where.read_text(encoding="utf-8"))
    tensors, changes = REMAKES[arch](load_file(path), config)
    save_file(tensors, path)
    where.write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not None}), encoding="utf-8")
