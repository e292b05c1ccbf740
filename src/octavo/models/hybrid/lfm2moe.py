"""LFM2-MoE: LFM2 with experts for the feed-forward of all layers but the first ones, chosen by sigmoids."""

from dataclasses import dataclass, replace

from octavo.models.hybrid import lfm2
from octavo.models.shared import experts, names
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.experts import GATE, N_DENSE, SIGMOID, Routed
from octavo.models.shared.reader import MetadataReader


@dataclass(frozen=True, kw_only=True)
class Lfm2Moe(lfm2.Lfm2, Routed):
    """Sizes of convolutions, and how tokens find their experts."""


def complete(r: MetadataReader, hp: Lfm2Moe) -> Lfm2Moe:
    return replace(hp, **vars(lfm2.complete(r, hp)) | experts.read(r, hp, SIGMOID, normalized=True))


def config_keys(config: Config) -> Keys:
    return lfm2.shared_keys(config) | expert_keys(config, "num_experts", width="moe_intermediate_size") | {
        N_DENSE: config.count("num_dense_layers", config.n_layer), GATE: SIGMOID,
    }


ARCH = replace(
    lfm2.ARCH,
    name="lfm2moe",
    network=lfm2.decoder(experts.FEED_FORWARD),
    keys=(*experts.KEYS, lfm2.TAPS),
    sizes=replace(lfm2.ARCH.sizes, kind=Lfm2Moe, complete=complete),
    experts=True,
    classes={"Lfm2MoeForCausalLM": config_keys},
    only={"conv_bias": False, "norm_topk_prob": True, "use_expert_bias": True, "routed_scaling_factor": 1},
    names=lfm2.NAMES | names.moe("feed_forward", "w1", "w3", "w2") | {"feed_forward.expert_bias": "exp_probs_b.bias"},
)
