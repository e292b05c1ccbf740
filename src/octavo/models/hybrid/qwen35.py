"""Qwen3.5: layers of the gated delta rule, and gated attention in each fourth."""

import numpy as np

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import delta_net, layers, names
from octavo.models.shared.architecture import Architecture, NextLayer, Sizes, TensorLayout
from octavo.models.shared.conversion import columns_moved, in_order, order_moved
from octavo.models.shared.decoder import Decoder, FeedForward, LayerPart
from octavo.models.shared.delta_net import DeltaNet
from octavo.models.shared.mrope import Sections
from octavo.models.shared.weights import Weights

GATES = ("ssm_alpha", "ssm_beta")


def gates(g: GraphBuilder, hp: DeltaNet, b: Weights, h: Node) -> tuple[Node, Node]:
    alpha, beta = (layers.linear(g, b, name, h) for name in GATES)
    return alpha, beta


def decoder(feed_forward: LayerPart) -> Decoder:
    return delta_net.decoder(feed_forward, gates, lambda hp: dict.fromkeys(GATES, hp.heads), tiled=True)


def converted(name: str, tensor: LazyTensor, hp: DeltaNet) -> LazyTensor:
    """GGUF has the heads of values that go with one head of keys apart: first the first of each, then the second."""
    tensor = delta_net.converted(name, tensor, hp)
    heads = np.arange(hp.heads).reshape(hp.key_heads, -1).T.reshape(-1)
    size, of_keys = hp.inner // hp.heads, 2 * hp.key_heads * hp.keys
    of_heads = (heads[:, None] * size + np.arange(size)).reshape(-1)
    if name.endswith((".ssm_alpha.weight", ".ssm_beta.weight", ".ssm_a", ".ssm_dt.bias")):
        return in_order(tensor, heads)
    if name.endswith(".attn_gate.weight"):
        return in_order(tensor, of_heads)
    if name.endswith((".attn_qkv.weight", ".ssm_conv1d.weight")):
        return in_order(tensor, np.concatenate([np.arange(of_keys), of_keys + of_heads]))
    if name.endswith(".ssm_out.order"):
        return order_moved(tensor, of_heads)
    return columns_moved(tensor, heads) if name.endswith(".ssm_out.weight") else tensor


NAMES = delta_net.NAMES | {
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
}

KEYS = *delta_net.KEYS, Sections((11, 11, 10), checked=False)

ARCH = Architecture(
    name="qwen35",
    network=decoder(FeedForward()),
    keys=KEYS,
    next_layer=NextLayer(apart=True),
    sizes=Sizes(kind=DeltaNet, complete=delta_net.complete),
    classes={"Qwen3_5ForCausalLM": delta_net.config_keys},
    only={"attention_bias": False},
    rotary_part=0.25,
    names=NAMES | names.FFN,
    layout=TensorLayout(converted=converted),
)
