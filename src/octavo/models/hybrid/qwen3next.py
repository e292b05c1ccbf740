"""Qwen3-Next: layers of the gated delta rule, gated attention in each fourth, and experts everywhere."""

from dataclasses import replace

import numpy as np

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.hybrid import qwen35moe
from octavo.models.moe import qwen2moe
from octavo.models.shared import delta_net, layers
from octavo.models.shared.architecture import TensorLayout
from octavo.models.shared.conversion import in_order
from octavo.models.shared.delta_net import DeltaNet
from octavo.models.shared.weights import Weights


def gates(g: GraphBuilder, hp: DeltaNet, b: Weights, h: Node) -> tuple[Node, Node]:
    """Each head of keys has beta, and then alpha, of its heads of values."""
    both, each = g.split_heads(layers.linear(g, b, "ssm_ba", h), hp.key_heads), hp.heads // hp.key_heads
    beta, alpha = (g.join_of_heads(g.slice_heads(both, start, each)) for start in (0, each))
    return alpha, beta


def converted(name: str, tensor: LazyTensor, hp: DeltaNet) -> LazyTensor:
    """A checkpoint has q, k, v and the gate of each head of keys, GGUF q, k and v of all heads, and the gate apart."""
    if name.endswith((".attn_qkv.weight", ".attn_gate.weight")) and tensor.shape[0] == hp.channels + hp.inner:
        of_values = hp.inner // hp.key_heads
        apart = np.arange(tensor.shape[0]).reshape(hp.key_heads, -1)
        parts = np.split(apart, np.cumsum([hp.keys, hp.keys, of_values]), axis=1)
        wanted = parts[:3] if name.endswith(".attn_qkv.weight") else parts[3:]
        return in_order(tensor, np.concatenate([part.reshape(-1) for part in wanted]))
    return delta_net.converted(name, tensor, hp)


ARCH = replace(
    qwen35moe.ARCH,
    name="qwen3next",
    network=delta_net.decoder(
        qwen35moe.FEED_FORWARD, gates, lambda hp: {"ssm_ba": 2 * hp.heads}, tiled=False
    ),
    keys=(*delta_net.KEYS, qwen35moe.SHARED_WIDTH),
    classes={"Qwen3NextForCausalLM": qwen35moe.config_keys},
    names=delta_net.NAMES | qwen2moe.MODULES | {
        "linear_attn.in_proj_qkvz": "attn_qkv attn_gate", "linear_attn.in_proj_ba": "ssm_ba",
    },
    key_aliases={},
    layout=TensorLayout(converted=converted),
)
