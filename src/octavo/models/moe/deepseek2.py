"""DeepSeek V2 and V3 (R1), GLM-4.7-Flash, Mistral Large 3: latent attention, experts chosen by softmax or sigmoids.

They are chosen among the best groups, if there are groups; some experts all tokens go through.
"""

import math
from dataclasses import dataclass, replace

from octavo.models.shared import experts, latent_kv, names
from octavo.models.shared import latent_attention as latent
from octavo.models.shared.architecture import Architecture, NextLayer, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys, nextn_keys, rope_parameters
from octavo.models.shared.decoder import Decoder
from octavo.models.shared.experts import SIGMOID, SOFTMAX
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import LIMITS, MetadataReader, brief
from octavo.models.shared.rope import LOG_MULTIPLIER

TEMPERATURE, LENGTH = "attention.temperature_scale", "attention.temperature_length"


@dataclass(frozen=True, kw_only=True)
class Deepseek2(latent.Latent, experts.Routed):
    """Latent attention, and experts that are chosen by scores."""


def complete(r: MetadataReader, hp: Deepseek2) -> Deepseek2:
    """The key of yarn's strength has 0.1 times what takes it from rotated values and gives it to scores."""
    latent.check(r, hp)
    stretch = math.log(max(1.0, hp.rope.factor))
    taken = 1 + 0.1 * stretch if r.has(LOG_MULTIPLIER) else 1.0
    strength = 1 + (r.positive(LOG_MULTIPLIER) or 0.0) * stretch
    return replace(
        hp, **experts.read(r, hp, SOFTMAX), rope=replace(hp.rope, attention_factor=hp.rope.attention_factor / taken),
        query_scale=strength**2 / math.sqrt(hp.key),
    )


def v2(config: Config) -> Keys:
    """Raises ModelError for other ways to choose experts, and for normalized weights."""
    config.only({"norm_topk_prob": False})
    method = config.one_of("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    keys = attention_keys(config) | experts.config_keys(config, SOFTMAX, normalized=False)
    return keys | (experts.group_keys(config) if method == "group_limited_greedy" else {})


def v3(config: Config) -> Keys:
    config.only({"rope_interleave": True})
    keys = attention_keys(config) | experts.config_keys(config, SIGMOID, normalized=True) | experts.group_keys(config)
    return keys | nextn_keys(config)


def attention_keys(config: Config) -> Keys:
    """Latent attention. Raises ModelError for yarn that GGUF has no words for."""
    found = rope_parameters(config)
    if (scale := found.get("mscale")) != found.get("mscale_all_dim"):
        raise config.error("mscale", f"is {brief(scale)}", "mscale_all_dim's value")
    keys: Keys = {LOG_MULTIPLIER: 0.1 * config.real("mscale", of=found)} if scale else {}
    return keys | latent.config_keys(config)


ARCH = Architecture(
    name="deepseek2",
    network=Decoder(mixer=latent.LatentAttention(), feed_forward=experts.FEED_FORWARD),
    keys=(
        *latent.KEYS, *experts.KEYS, LOG_MULTIPLIER, Key("temperature", TEMPERATURE, default=0.0),
        Key("temperature_length", LENGTH, default=0, limit=LIMITS["context_length"]),
    ),
    sizes=Sizes(kind=Deepseek2, complete=complete, equal_lengths=False),
    interleaved=True,
    experts=True,
    next_layer=NextLayer(gives_normed=False),
    updated=latent_kv.split,
    classes={"DeepseekV2ForCausalLM": v2, "DeepseekV3ForCausalLM": v3, "Glm4MoeLiteForCausalLM": v3},
    only={"attention_bias": False},
    names=names.NORMS | names.FFN | latent.NAMES | names.ROUTED | names.NEXTN,
    layout=TensorLayout(permuted=False),
)
