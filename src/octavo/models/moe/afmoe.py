"""AFMoE (Trinity): attention with a gate, norms before and behind, rope only with a window, DeepSeek's experts."""

from __future__ import annotations

import math

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, expert_keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.routed import SIGMOID, Routed
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 4
"""The last of so many layers has neither window nor rope, where a file does not say which ones have."""


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, has_experts=True)
    return hp.extended(Routed, **routed.read(r, hp, SIGMOID), windowed=read_windowed(r, hp, PERIOD))


def tensors(hp: Routed) -> Tensors:
    block = layers.attention_tensors(hp, qk_norm=True)
    block |= with_scales({"attn_gate.weight": matrix(hp.n_head * hp.head_dim, hp.n_embd)})
    block |= {f"{part}_norm.weight": vector(hp.n_embd) for part in ("post_attention", "post_ffw")}
    return layers.model_tensors(hp, lambda i: block | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), math.sqrt(hp.n_embd))
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        q, k, v = layers.normed_qkv(g, hp, b, h)
        if hp.windowed[i]:
            q, k = rope(q), rope(k)
        y = g.attention(q, k, v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        y = g.mul(y, g.sigmoid(layers.linear(g, b, "attn_gate", h)))
        x = g.add(x, g.rms_norm(layers.linear(g, b, "attn_output", y), b["post_attention_norm"], hp.eps))
        h = routed.feed_forward(g, hp, b, g.rms_norm(x, b["ffn_norm"], hp.eps), i)
        x = g.add(x, g.rms_norm(h, b["post_ffw_norm"], hp.eps))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for embeddings that are not scaled, for shares that are not normalized, and for groups."""
    usual = {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1, "num_expert_groups": 1}
    for key, value in usual.items():
        if (found := config.values.get(key, value)) != value:
            raise config.error(key, f"is {brief(found)}", str(value).lower())
    if not config.flag("mup_enabled", False):
        raise config.error("mup_enabled", "is false", "true")
    period = config.size("global_attn_every_n_layers", LIMITS["block_count"], PERIOD)
    windows = layer_window_keys(config, period, 1024)
    if windows and PATTERN not in windows and period != PERIOD:
        windows |= {PATTERN: period}
    return windows | expert_keys(config, "num_experts") | {
        "expert_feed_forward_length": config.size("moe_intermediate_size", LIMITS["expert_feed_forward_length"]),
        routed.N_DENSE: config.count("num_dense_layers", config.size("num_hidden_layers", LIMITS["block_count"])),
        routed.N_SHARED: config.count("num_shared_experts", LIMITS["expert_count"]), routed.GATE: SIGMOID,
        routed.SHARE_SCALE: config.real("route_scale", 1.0), routed.NORMALIZED: True,
    }


ARCH = Architecture(
    name="afmoe",
    hparams=hparams,
    keys=routed.KEYS | {PATTERN},
    tensors=tensors,
    build=build,
    classes={"AfmoeForCausalLM": config_keys},
    names=names.ATTENTION | names.QK_NORMS | names.FFN | names.ROUTED | {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
        "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm", "self_attn.gate_proj": "attn_gate",
        "mlp.router.gate": "ffn_gate_inp", "mlp.expert_bias": "exp_probs_b.bias",
    },
    writable=False,
)
