"""Hunyuan with experts for a feed-forward, and one that all tokens go through."""

from dataclasses import replace

from octavo.models.dense import hunyuan_dense
from octavo.models.shared import experts, names
from octavo.models.shared.architecture import Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Decoder
from octavo.models.shared.experts import SOFTMAX, Routed
from octavo.models.shared.reader import EXPERT_WIDTH, LIMITS, MetadataReader, brief

LISTS = ("moe_topk", "moe_intermediate_size", "num_shared_expert", "num_experts")
"""What config.json says once, or for each layer."""


def complete(r: MetadataReader, hp: Routed) -> Routed:
    found = replace(hp, **experts.read(r, hp, SOFTMAX, normalized=True))
    return replace(found, n_ff_shared=found.n_ff_shared or hp.n_ff)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers that differ, for several experts for all tokens, and for dense first layers."""
    one = config.replaced({**config.values, **{key: _of_all(config, key) for key in LISTS if key in config.values}})
    one.only({"num_shared_expert": 1, "moe_layer_num_skipped": 0})
    count, width = one.size("num_experts", LIMITS["expert_count"]), LIMITS[EXPERT_WIDTH]
    dense = one.size("intermediate_size", width)
    return hunyuan_dense.config_keys(config) | {
        "expert_count": count, "expert_used_count": one.size("moe_topk", count),
        EXPERT_WIDTH: one.size("moe_intermediate_size", width, dense),
        experts.N_SHARED: 1, experts.SHARED_WIDTH: dense,
    }


def _of_all(config: Config, key: str) -> object:
    """The value that all layers have."""
    value = config.values[key]
    if not isinstance(value, list) or not value:
        return value
    if any(other != value[0] for other in value):
        raise config.error(key, f"is {brief(value)}", "one value for all layers")
    return value[0]


ARCH = replace(
    hunyuan_dense.ARCH,
    name="hunyuan-moe",
    network=Decoder(mixer=hunyuan_dense.ATTENTION, feed_forward=experts.FEED_FORWARD),
    keys=experts.KEYS,
    sizes=Sizes(kind=Routed, complete=complete),
    experts=True,
    classes={"HunYuanMoEV1ForCausalLM": config_keys},
    names=hunyuan_dense.NAMES | names.moe("mlp", "gate_proj", "up_proj", "down_proj") | {
        "mlp.gate.wg": "ffn_gate_inp", **names.ffn("mlp.shared_mlp", "_shexp"),
    },
)
