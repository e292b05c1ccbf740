"""Qwen3-Next: layers of the gated delta rule, gated attention in each fourth, and experts everywhere."""

from __future__ import annotations

import numpy as np

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.hybrid import qwen35moe
from octavo.models.hybrid.qwen35moe import DeltaNetMoe
from octavo.models.moe import qwen2moe
from octavo.models.moe.qwen2moe import SHARED_WIDTH
from octavo.models.shared import delta_net, layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.states import reordered
from octavo.models.shared.weights import Tensors, Weights


def tensors(hp: DeltaNetMoe) -> Tensors:
    experts = qwen35moe.feed_forward_tensors(hp)
    return layers.model_tensors(hp, lambda i: delta_net.mixer_tensors(hp, i, {"ssm_ba": 2 * hp.heads}) | experts)


def build(g: GraphBuilder, hp: DeltaNetMoe, w: Weights) -> Node:
    def gates(g: GraphBuilder, b: Weights, h: Node) -> tuple[Node, Node]:
        """Each head of keys has beta, and then alpha, of its heads of values."""
        both, each = g.split_heads(layers.linear(g, b, "ssm_ba", h), hp.key_heads), hp.heads // hp.key_heads
        beta, alpha = (g.join_of_heads(g.slice_heads(both, start, each)) for start in (0, each))
        return alpha, beta

    return delta_net.graph(g, hp, w, lambda g, b, h: qwen35moe.feed_forward(g, hp, b, h), gates, tiled=False)


def config_keys(config: Config) -> Keys:
    return delta_net.config_keys(config) | qwen35moe.feed_forward_keys(config)


def remade(name: str, tensor: LazyTensor, hp: DeltaNetMoe) -> LazyTensor:
    """A checkpoint has q, k, v and the gate of each head of keys, GGUF q, k and v of all heads, and the gate apart."""
    if name.endswith((".attn_qkv.weight", ".attn_gate.weight")) and tensor.shape[0] == hp.channels + hp.inner:
        of_values = hp.inner // hp.key_heads
        apart = np.arange(tensor.shape[0]).reshape(hp.key_heads, -1)
        parts = np.split(apart, np.cumsum([hp.keys, hp.keys, of_values]), axis=1)
        wanted = parts[:3] if name.endswith(".attn_qkv.weight") else parts[3:]
        return reordered(tensor, np.concatenate([part.reshape(-1) for part in wanted]))
    return delta_net.remade(name, tensor, hp)


ARCH = Architecture(
    name="qwen3next",
    hparams=qwen35moe.hparams,
    keys=delta_net.KEYS | {SHARED_WIDTH},
    tensors=tensors,
    build=build,
    classes={"Qwen3NextForCausalLM": config_keys},
    names=delta_net.NAMES | qwen2moe.MODULES | {
        "linear_attn.in_proj_qkvz": "attn_qkv attn_gate", "linear_attn.in_proj_ba": "ssm_ba",
    },
    unused=("mtp.",),
    remade=remade,
    writable=False,
)
