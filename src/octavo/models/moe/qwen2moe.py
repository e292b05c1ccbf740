"""Qwen2-MoE: Qwen2 with experts for a feed-forward, and one that all tokens go through as far as a gate says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys, expert_words
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Expected, Tensors, Weights

SHARED_WIDTH = "expert_shared_feed_forward_length"


@dataclass(frozen=True, kw_only=True)
class Qwen2Moe(Hyperparams):
    """n_ff_shared is the width of the shared expert."""

    n_ff_shared: int


def hparams(r: HyperparamReader) -> Qwen2Moe:
    hp = read_shared(r, has_experts=True)
    return hp.extended(Qwen2Moe, n_ff_shared=r.size(SHARED_WIDTH, hp.n_ff or None))


def tensors(hp: Qwen2Moe) -> Tensors:
    return layers.model_tensors(hp, layers.attention_tensors(hp) | layers.moe_tensors(hp) | shared_tensors(hp))


def shared_tensors(hp: Qwen2Moe) -> Tensors:
    gate = {"ffn_gate_inp_shexp.weight": Expected((hp.n_embd,), row=True)}
    return layers.shared_expert_tensors(hp, hp.n_ff_shared) | gate


def build(g: GraphBuilder, hp: Qwen2Moe, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, g.add(layers.moe(g, hp, b, h, normalized=False), shared_expert(g, b, h)))
    return layers.logits(g, hp, w, x)


def shared_expert(g: GraphBuilder, b: Weights, h: Node) -> Node:
    """The expert that all tokens go through, as far as its gate says."""
    gate = g.sigmoid(g.mul_mat(b.as_matrix("ffn_gate_inp_shexp"), h))
    return g.weighted_sum(g.as_one_row(layers.ffn(g, b, h, "_shexp")), gate)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for windows, normalized shares, and dense layers between the others."""
    config.only_flags(dict.fromkeys(("use_sliding_window", "norm_topk_prob"), False))
    return width_keys(config)


def width_keys(config: Config) -> Keys:
    """Experts, how wide they are, and the shared one. Raises ModelError for dense layers between the others."""
    if config.values.get("decoder_sparse_step", 1) != 1 or config.values.get("mlp_only_layers"):
        raise config.error("mlp_only_layers", "has dense layers between those of experts", "experts in all layers")
    width = LIMITS["expert_feed_forward_length"]
    return expert_keys(config, "num_experts") | {
        "expert_feed_forward_length": config.size("moe_intermediate_size", width),
        SHARED_WIDTH: config.size("shared_expert_intermediate_size", width),
    }


def config_values(hp: Qwen2Moe) -> Mapping[str, Any]:
    return {
        "model_type": "qwen2_moe", **expert_words(hp, "num_experts"), "moe_intermediate_size": hp.n_ff_expert,
        "shared_expert_intermediate_size": hp.n_ff_shared, "norm_topk_prob": False, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


MODULES = names.moe("mlp", "gate_proj", "up_proj", "down_proj") | {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
"""The router, experts and the shared one."""

ARCH = Architecture(
    name="qwen2moe",
    hparams=hparams,
    keys=frozenset({SHARED_WIDTH}),
    tensors=tensors,
    build=build,
    classes={"Qwen2MoeForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | MODULES,
    biases={"qkv_bias": ("attn_q", "attn_k", "attn_v")},
    config_values=config_values,
)
