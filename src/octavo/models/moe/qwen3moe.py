"""Qwen3-MoE: Qwen3 with experts for a feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys, expert_words, window_keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, read_windowed


def hparams(r: HyperparamReader) -> Hyperparams:
    """Where there is a window all layers have it, unless the file says which."""
    hp = read_shared(r, has_experts=True)
    return replace(hp, windowed=read_windowed(r, hp, 0))


def tensors(hp: Hyperparams) -> Tensors:
    feed_forward = layers.moe_tensors(hp)
    return layers.model_tensors(hp, layers.attention_tensors(hp, qk_norm=True) | feed_forward)


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        q, k, v = layers.normed_qkv(g, hp, b, h)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, layers.moe(g, hp, b, h))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a router whose shares are not normalized, and for dense layers between the others."""
    if not config.flag("norm_topk_prob", False):
        raise config.error("norm_topk_prob", "is false", "true")
    window = window_keys(config, 4096) if config.flag("use_sliding_window", False) else {}
    return window | expert_layer_keys(config)


def expert_layer_keys(config: Config) -> Keys:
    """Experts of all layers. Raises ModelError for dense layers between them."""
    if config.values.get("decoder_sparse_step", 1) != 1 or config.values.get("mlp_only_layers"):
        raise config.error("mlp_only_layers", "has dense layers between those of experts", "experts in all layers")
    width = config.size("moe_intermediate_size", LIMITS["expert_feed_forward_length"])
    return expert_keys(config, "num_experts", "num_local_experts") | {"expert_feed_forward_length": width}


def config_values(hp: Hyperparams) -> Mapping[str, Any]:
    return {
        "model_type": "qwen3_moe", **expert_words(hp, "num_experts"), "moe_intermediate_size": hp.n_ff_expert,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }


ARCH = Architecture(
    name="qwen3moe",
    hparams=hparams,
    keys=frozenset({PATTERN}),
    tensors=tensors,
    build=build,
    classes={"Qwen3MoeForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.moe("mlp", "gate_proj", "up_proj", "down_proj"),
    biases={"attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output")},
    config_values=config_values,
)
