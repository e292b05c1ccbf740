"""GLM-4.5 to 4.7: rope on half of each head, norms of q and k in some, and DeepSeek's experts, chosen by sigmoids."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, nextn_keys, rotary_keys
from octavo.models.shared.hparams import NEXTN, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.routed import SIGMOID, Routed
from octavo.models.shared.weights import Expected, Tensors, Weights, vector

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
    def qkv(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node) -> tuple[Node, Node, Node]:
        return (layers.qkv if b.get("attn_q_norm") is None else layers.normed_qkv)(g, hp, b, h)

    return routed.graph(g, hp, w, qkv, norm="post_attention_norm")


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
)
