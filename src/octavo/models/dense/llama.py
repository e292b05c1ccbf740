"""Llama 2 and 3, Mistral, Ministral and Mixtral: rope on neighbouring pairs, SwiGLU or experts, windows in some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys, expert_words, window_keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed


def hparams(r: HyperparamReader) -> Hyperparams:
    """Where there is a window all layers have it, unless the file says which."""
    hp = read_shared(r, interleaved=True)
    return replace(hp, windowed=read_windowed(r, hp, 0))


def tensors(hp: Hyperparams) -> Tensors:
    feed_forward = layers.moe_tensors(hp) if hp.n_expert else layers.ffn_tensors(hp, bias=True)
    return layers.model_tensors(hp, layers.attention_tensors(hp, output_bias=True) | feed_forward)


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        q, k, v = layers.qkv(g, hp, b, h)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, layers.moe(g, hp, b, h) if hp.n_expert else layers.ffn(g, b, h))
    return layers.logits(g, hp, w, x)


def ministral(config: Config) -> Keys:
    return layer_window_keys(config, 0) if window_keys(config, 4096) else {}


def mixtral(config: Config) -> Keys:
    return window_keys(config, 0) | expert_keys(config, "num_local_experts")


def config_values(hp: Hyperparams) -> Mapping[str, Any]:
    """Of a model with experts that it is a Mixtral."""
    if not hp.n_expert:
        return {}
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **expert_words(hp, "num_local_experts")}


ARCH = Architecture(
    name="llama",
    hparams=hparams,
    keys=frozenset({PATTERN}),
    tensors=tensors,
    build=build,
    classes={
        "LlamaForCausalLM": lambda config: {},
        "MistralForCausalLM": lambda config: window_keys(config, 4096),
        "MinistralForCausalLM": ministral,
        "MixtralForCausalLM": mixtral,
    },
    names=names.LLAMA | names.moe("block_sparse_moe", "w1", "w3", "w2") | names.moe("mlp", "w1", "w3", "w2"),
    ropes=("default", "linear", "yarn", "llama3"),
    is_70b=lambda heads, kv_heads, experts: heads != kv_heads and experts != 8,
    biases={
        "attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output"),
        "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down"),
    },
    config_values=config_values,
)
