"""Arcee (AFM): Llama with a feed-forward of two matrices, between them a squared ReLU."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, interleaved=True, has_experts=False)


def tensors(hp: Hyperparams) -> Tensors:
    attention = layers.attention_tensors(hp, output_bias=True)
    return layers.model_tensors(hp, attention | layers.plain_ffn_tensors(hp, bias=True))


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.plain_ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps), g.relu_squared))
    return layers.logits(g, hp, w, x)


ARCH = Architecture(
    name="arcee",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={"ArceeForCausalLM": lambda config: {}},
    names=names.NORMS | names.ATTENTION | {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    activation="relu2",
    writable=False,
)
