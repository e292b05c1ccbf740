"""Seed-OSS: Llama with biases of q, k and v, and rope on halves; its second norm is named as one behind attention."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.hparams import Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp, output_bias=True) | layers.ffn_tensors(hp, bias=True)
    block["post_attention_norm.weight"] = block.pop("ffn_norm.weight")
    return layers.model_tensors(hp, block)


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["post_attention_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


ARCH = Architecture(
    name="seed_oss",
    hparams=partial(read_shared, has_experts=False),
    tensors=tensors,
    build=build,
    classes={"SeedOssForCausalLM": lambda config: {}},
    names=names.LLAMA | {"post_attention_layernorm": "post_attention_norm"},
    biases={
        "attention_bias": ("attn_q", "attn_k", "attn_v"), "attention_out_bias": ("attn_output",),
        "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down"),
    },
)
