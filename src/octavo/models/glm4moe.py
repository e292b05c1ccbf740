"""GLM-4.5 to 4.7: rope on half of each head, norms of q and k in some, and DeepSeek's experts, chosen by sigmoids."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import layers, names, routed
from octavo.models.architecture import Architecture
from octavo.models.config import Config, Keys, nextn_keys, rotary_keys
from octavo.models.hparams import NEXTN, HyperparamReader, read_shared
from octavo.models.routed import SIGMOID, Routed
from octavo.models.weights import Expected, Tensors, Weights, vector

NORMS = {"attn_q_norm.weight", "attn_k_norm.weight"}


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, has_experts=True)
    return hp.extended(Routed, **routed.read(r, hp, SIGMOID))


def tensors(hp: Routed) -> Tensors:
    block = layers.attention_tensors(hp) | {"post_attention_norm.weight": vector(hp.n_embd)}
    block |= {name: Expected((hp.head_dim,), optional=True) for name in NORMS}

    def in_layer(i: int) -> Tensors:
        feed_forward = routed.feed_forward_tensors(hp, i)
        del feed_forward["ffn_norm.weight"]
        return block | feed_forward

    return layers.model_tensors(hp, in_layer)


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        if b.get("attn_q_norm") is not None:
            q, k = g.rms_norm(q, b["attn_q_norm"], hp.eps), g.rms_norm(k, b["attn_k_norm"], hp.eps)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, routed.feed_forward(g, hp, b, g.rms_norm(x, b["post_attention_norm"], hp.eps), i))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    keys = routed.config_keys(config, SIGMOID, normalized=True) | routed.group_keys(config)
    return keys | rotary_keys(config, default=0.5) | nextn_keys(config)


ARCH = Architecture(
    name="glm4moe",
    hparams=hparams,
    keys=routed.KEYS | {NEXTN},
    tensors=tensors,
    build=build,
    classes={"Glm4MoeForCausalLM": config_keys},
    names=names.ATTENTION | names.QK_NORMS | names.FFN | names.ROUTED | names.NEXTN | {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    },
    ropes=("default", "linear", "yarn"),
    writable=False,
)  # fmt: skip
