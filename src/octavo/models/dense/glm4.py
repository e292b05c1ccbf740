"""GLM-4 (0414): rope on neighbouring pairs of half of each head, norms before and behind, gate and up in one matrix."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import rotary_keys
from octavo.models.shared.hparams import Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales


def tensors(hp: Hyperparams) -> Tensors:
    feed_forward = with_scales({
        "ffn_up.weight": matrix(2 * hp.n_ff, hp.n_embd), "ffn_down.weight": matrix(hp.n_embd, hp.n_ff),
    })
    norms = {f"{part}_norm.weight": vector(hp.n_embd) for part in ("post_attention", "ffn", "post_ffw")}
    return layers.model_tensors(hp, layers.attention_tensors(hp) | feed_forward | norms)


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, g.rms_norm(layers.linear(g, b, "attn_output", h), b["post_attention_norm"], hp.eps))
        h = layers.linear(g, b, "ffn_up", g.rms_norm(x, b["ffn_norm"], hp.eps))
        h = layers.linear(g, b, "ffn_down", g.swiglu(*g.columns(h, hp.n_ff, hp.n_ff)))
        x = g.add(x, g.rms_norm(h, b["post_ffw_norm"], hp.eps))
    return layers.logits(g, hp, w, x)


ARCH = Architecture(
    name="glm4",
    hparams=partial(read_shared, interleaved=True, has_experts=False),
    tensors=tensors,
    build=build,
    classes={"Glm4ForCausalLM": partial(rotary_keys, default=0.5)},
    names=names.NORMS | names.ATTENTION | {
        "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    },
    ropes=("default",),
    reordered=False,
    writable=False,
)
