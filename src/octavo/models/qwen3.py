"""Qwen3: Llama with a norm on each head of q and k instead of biases, and rope on halves."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import layers
from octavo.models.hparams import Hyperparams
from octavo.models.weights import Tensors, Weights

INTERLEAVED_ROPE = False
HAS_EXPERTS = False


def tensors(hp: Hyperparams) -> Tensors:
    feed_forward = layers.ffn_tensors(hp)
    return layers.model_tensors(hp, layers.attention_tensors(hp, qk_norm=True) | feed_forward)


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        q, k, v = layers.qkv(g, hp, b, h)
        q, k = g.rms_norm(q, b["attn_q_norm"], hp.eps), g.rms_norm(k, b["attn_k_norm"], hp.eps)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, layers.ffn(g, b, h))
    return layers.logits(g, hp, w, x)
