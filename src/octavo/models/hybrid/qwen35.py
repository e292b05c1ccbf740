"""Qwen3.5: layers of the gated delta rule, and gated attention in each fourth."""

from __future__ import annotations

import numpy as np

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import delta_net, layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.delta_net import DeltaNet
from octavo.models.shared.hparams import HyperparamReader, read_shared
from octavo.models.shared.mrope import SECTIONS, section_keys
from octavo.models.shared.remaking import columns_moved, order_moved
from octavo.models.shared.states import reordered
from octavo.models.shared.weights import Tensors, Weights

GATES = ("ssm_alpha", "ssm_beta")


def hparams(r: HyperparamReader) -> DeltaNet:
    hp = read_shared(r, has_experts=False)
    return hp.extended(DeltaNet, **delta_net.read(r, hp))


def tensors(hp: DeltaNet) -> Tensors:
    def block(i: int) -> Tensors:
        feed_forward = layers.ffn_tensors(hp)
        del feed_forward["ffn_norm.weight"]
        return mixer_tensors(hp, i) | feed_forward

    return layers.model_tensors(hp, block)


def mixer_tensors(hp: DeltaNet, layer: int) -> Tensors:
    return delta_net.mixer_tensors(hp, layer, dict.fromkeys(GATES, hp.heads))


def build(g: GraphBuilder, hp: DeltaNet, w: Weights) -> Node:
    return delta_net.graph(g, hp, w, layers.ffn, gates, tiled=True)


def gates(g: GraphBuilder, b: Weights, h: Node) -> tuple[Node, Node]:
    alpha, beta = (layers.linear(g, b, name, h) for name in GATES)
    return alpha, beta


def config_keys(config: Config) -> Keys:
    return delta_net.config_keys(config) | section_keys(config, [11, 11, 10])


def remade(name: str, tensor: LazyTensor, hp: DeltaNet) -> LazyTensor:
    """GGUF has the heads of values that go with one head of keys apart: first the first of each, then the second."""
    tensor = delta_net.remade(name, tensor, hp)
    heads = np.arange(hp.heads).reshape(hp.key_heads, -1).T.reshape(-1)
    size, of_keys = hp.inner // hp.heads, 2 * hp.key_heads * hp.keys
    of_heads = (heads[:, None] * size + np.arange(size)).reshape(-1)
    if name.endswith((".ssm_alpha.weight", ".ssm_beta.weight", ".ssm_a", ".ssm_dt.bias")):
        return reordered(tensor, heads)
    if name.endswith(".attn_gate.weight"):
        return reordered(tensor, of_heads)
    if name.endswith((".attn_qkv.weight", ".ssm_conv1d.weight")):
        return reordered(tensor, np.concatenate([np.arange(of_keys), of_keys + of_heads]))
    if name.endswith(".ssm_out.order"):
        return order_moved(tensor, of_heads)
    return columns_moved(tensor, heads) if name.endswith(".ssm_out.weight") else tensor


NAMES = delta_net.NAMES | {
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
}

ARCH = Architecture(
    name="qwen35",
    hparams=hparams,
    keys=delta_net.KEYS | {SECTIONS},
    tensors=tensors,
    build=build,
    classes={"Qwen3_5ForCausalLM": config_keys},
    names=NAMES | names.FFN,
    unused=("mtp.",),
    remade=remade,
    writable=False,
)
