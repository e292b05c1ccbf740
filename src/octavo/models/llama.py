"""Llama 2 and 3, Mistral and Mixtral: grouped-query attention, rope on neighbouring pairs, SwiGLU or experts."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import layers
from octavo.models.hparams import Hyperparams
from octavo.models.weights import Tensors, Weights

INTERLEAVED_ROPE = True
HAS_EXPERTS = None  # Mixtral has some


def tensors(hp: Hyperparams) -> Tensors:
    feed_forward = layers.moe_tensors(hp) if hp.n_expert else layers.ffn_tensors(hp, bias=True)
    return layers.model_tensors(hp, layers.attention_tensors(hp, output_bias=True) | feed_forward)


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp, w)
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
