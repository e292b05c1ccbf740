"""ERNIE 4.5: Llama whose checkpoints have rope on neighbouring pairs, too."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import layers, names
from octavo.models.architecture import Architecture
from octavo.models.hparams import Hyperparams, read_shared
from octavo.models.weights import Tensors, Weights


def tensors(hp: Hyperparams) -> Tensors:
    feed_forward = layers.ffn_tensors(hp, bias=True)
    return layers.model_tensors(hp, layers.attention_tensors(hp, output_bias=True) | feed_forward)


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


ARCH = Architecture(
    name="ernie4_5",
    hparams=partial(read_shared, interleaved=True, has_experts=False),
    tensors=tensors,
    build=build,
    classes=dict.fromkeys(("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), lambda config: {}),
    names=names.LLAMA,
    tied=True,
    reordered=False,
    biases={"use_bias": ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")},
)
