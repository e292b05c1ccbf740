"""Qwen3.5 with experts for a feed-forward, and one that all tokens go through as far as a gate says."""

from dataclasses import replace

from octavo.models.hybrid import qwen35
from octavo.models.moe import qwen2moe
from octavo.models.moe.qwen2moe import SHARED
from octavo.models.shared import delta_net
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Experts

FEED_FORWARD = Experts(shared="gated")
SHARED_WIDTH = replace(SHARED, default=lambda hp: hp.n_ff_expert)
ONLY = {"attention_bias": False, "norm_topk_prob": True}


def config_keys(config: Config) -> Keys:
    return delta_net.config_keys(config) | qwen2moe.expert_layer_keys(config)


ARCH = replace(
    qwen35.ARCH,
    name="qwen35moe",
    network=qwen35.decoder(FEED_FORWARD),
    keys=(*qwen35.KEYS, SHARED_WIDTH),
    experts=True,
    classes={"Qwen3_5MoeForCausalLM": config_keys},
    only=ONLY,
    names=qwen35.NAMES | qwen2moe.MODULES,
    key_aliases={"moe_intermediate_size": "intermediate_size"},
)
