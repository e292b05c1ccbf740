"""Qwen3.5 with experts for a feed-forward, and one that all tokens go through as far as a gate says."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.hybrid import qwen35
from octavo.models.moe import qwen2moe
from octavo.models.moe.qwen2moe import SHARED_WIDTH, Qwen2Moe
from octavo.models.shared import delta_net, layers, mrope
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.delta_net import DeltaNet
from octavo.models.shared.hparams import HyperparamReader, read_shared
from octavo.models.shared.weights import Tensors, Weights


@dataclass(frozen=True, kw_only=True)
class DeltaNetMoe(DeltaNet, Qwen2Moe):
    """Sizes of the delta rule, and the width of the shared expert."""


def hparams(r: HyperparamReader) -> DeltaNetMoe:
    hp = read_shared(r, has_experts=True)
    width = r.size(SHARED_WIDTH, hp.n_ff_expert)
    return hp.extended(DeltaNetMoe, **delta_net.read(r, hp), n_ff_shared=width)


def feed_forward_tensors(hp: DeltaNetMoe) -> Tensors:
    experts = layers.moe_tensors(hp) | qwen2moe.shared_tensors(hp)
    del experts["ffn_norm.weight"]
    return experts


def tensors(hp: DeltaNetMoe) -> Tensors:
    experts = feed_forward_tensors(hp)
    return layers.model_tensors(hp, lambda i: qwen35.mixer_tensors(hp, i) | experts)


def build(g: GraphBuilder, hp: DeltaNetMoe, w: Weights) -> Node:
    return delta_net.graph(g, hp, w, lambda g, b, h: feed_forward(g, hp, b, h), qwen35.gates, tiled=True)


def feed_forward(g: GraphBuilder, hp: DeltaNetMoe, b: Weights, h: Node) -> Node:
    return g.add(layers.moe(g, hp, b, h), qwen2moe.shared_expert(g, b, h))


def config_keys(config: Config) -> Keys:
    return qwen35.config_keys(config) | feed_forward_keys(config)


def feed_forward_keys(config: Config) -> Keys:
    """Raises ModelError for shares that are not normalized, and for dense layers between the others."""
    config.only_flags({"norm_topk_prob": True})
    return qwen2moe.width_keys(config)


ARCH = Architecture(
    name="qwen35moe",
    hparams=hparams,
    keys=delta_net.KEYS | {mrope.SECTIONS, SHARED_WIDTH},
    tensors=tensors,
    build=build,
    classes={"Qwen3_5MoeForCausalLM": config_keys},
    names=qwen35.NAMES | qwen2moe.MODULES,
    unused=("mtp.",),
    key_aliases={"moe_intermediate_size": "intermediate_size"},
    remade=qwen35.remade,
    writable=False,
)
