"""LFM2-MoE: LFM2 with experts for the feed-forward of all layers but the first ones, chosen by sigmoids."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.hybrid import lfm2
from octavo.models.shared import names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader
from octavo.models.shared.routed import GATE, N_DENSE, SIGMOID, Routed
from octavo.models.shared.weights import Tensors, Weights


@dataclass(frozen=True, kw_only=True)
class Lfm2Moe(lfm2.Lfm2, Routed):
    """Sizes of convolutions, and how tokens find their experts."""


def hparams(r: HyperparamReader) -> Lfm2Moe:
    hp = lfm2.hparams(r, has_experts=True)
    return hp.extended(Lfm2Moe, **routed.read(r, hp, SIGMOID, normalized=True))


def tensors(hp: Lfm2Moe) -> Tensors:
    return lfm2.model_tensors(hp, lambda i: routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Lfm2Moe, w: Weights) -> Node:
    return lfm2.graph(g, hp, w, lambda g, b, h, i: routed.feed_forward(g, hp, b, h, i))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for shares that are not normalized or scaled, and experts that are chosen without a bias."""
    config.only_flags({"norm_topk_prob": True, "use_expert_bias": True})
    config.only({"routed_scaling_factor": 1})
    n = config.size("num_hidden_layers", LIMITS["block_count"])
    return lfm2.shared_keys(config) | expert_keys(config, "num_experts") | {
        N_DENSE: config.count("num_dense_layers", n), GATE: SIGMOID,
        "expert_feed_forward_length": config.size("moe_intermediate_size", LIMITS["expert_feed_forward_length"]),
    }


ARCH = Architecture(
    name="lfm2moe",
    hparams=hparams,
    keys=routed.KEYS | {lfm2.WIDTH},
    tensors=tensors,
    build=build,
    classes={"Lfm2MoeForCausalLM": config_keys},
    names=lfm2.NAMES | names.moe("feed_forward", "w1", "w3", "w2") | {"feed_forward.expert_bias": "exp_probs_b.bias"},
    outer=lfm2.OUTER,
    key_aliases=lfm2.WORDS,
    remade=lfm2.remade,
    tied=True,
    writable=False,
)
