"""Qwen3: Llama with a norm on each head of q and k instead of biases, and rope on halves."""

from __future__ import annotations

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, read_windowed, window_of_some


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = read_shared(r, has_experts=False)
    return replace(hp, windowed=read_windowed(r, hp, None))


def tensors(hp: Hyperparams) -> Tensors:
    feed_forward = layers.ffn_tensors(hp)
    model = layers.model_tensors(hp, layers.attention_tensors(hp, qk_norm=True) | feed_forward)
    return model | layers.classifier_tensors(hp)


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
        x = g.add(x, layers.ffn(g, b, h))
    return layers.logits(g, hp, w, x)


ARCH = Architecture(
    name="qwen3",
    hparams=hparams,
    keys=frozenset({PATTERN}),
    tensors=tensors,
    build=build,
    classes={"Qwen3ForCausalLM": window_of_some},
    names=names.LLAMA | names.QK_NORMS,
    biases={"attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output")},
)
