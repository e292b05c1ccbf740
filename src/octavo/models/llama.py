"""Llama 2 and 3, Mistral and Mixtral: grouped-query attention, rope on neighbouring pairs, SwiGLU or experts."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import layers, names
from octavo.models.architecture import Architecture
from octavo.models.config import Config, Keys, expert_keys, window_keys
from octavo.models.hparams import Hyperparams, read_shared
from octavo.models.weights import Tensors, Weights


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
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, layers.moe(g, hp, b, h) if hp.n_expert else layers.ffn(g, b, h))
    return layers.logits(g, hp, w, x)


def mixtral(config: Config) -> Keys:
    return window_keys(config, 0) | expert_keys(config, "num_local_experts")


ARCH = Architecture(
    name="llama",
    hparams=partial(read_shared, interleaved=True, has_experts=None),
    tensors=tensors,
    build=build,
    classes={
        "LlamaForCausalLM": lambda config: {},
        "MistralForCausalLM": lambda config: window_keys(config, 4096),
        "MixtralForCausalLM": mixtral,
    },
    names=names.LLAMA | names.moe("block_sparse_moe", "w1", "w3", "w2") | names.moe("mlp", "w1", "w3", "w2"),
    ropes=("default", "linear", "yarn", "llama3"),
    is_70b=lambda heads, kv_heads, experts: heads != kv_heads and experts != 8,
    biases={
        "attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output"),
        "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down"),
    },
)
