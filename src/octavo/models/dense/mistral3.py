"""Mistral 3 and Ministral 3, text: Llama whose scores grow with the position beyond the original context."""

import math
from dataclasses import replace

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.decoder import Attention, Decoder, FeedForward
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import MetadataReader, brief
from octavo.models.shared.rope import LOG_MULTIPLIER

TEMPERATURE = Key(
    "temperature", "attention.temperature_scale", "llama_4_scaling_beta", default=0.0, of_rope=True
)


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    strength = 1 + 0.1 * (r.positive(LOG_MULTIPLIER) or 0.0) * math.log(max(1.0, hp.rope.factor))
    return replace(hp, rope=replace(hp.rope, attention_factor=hp.rope.attention_factor / strength))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for yarn whose strength GGUF has no words for."""
    found = rope_parameters(config)
    if found.get("mscale") not in (None, 1) or bool(found.get("mscale")) != bool(found.get("mscale_all_dim")):
        raise config.error("mscale", f"is {brief(found.get('mscale'))}", "1, with mscale_all_dim")
    return {}


ARCH = Architecture(
    name="mistral3",
    network=Decoder(mixer=Attention(output_bias=None), feed_forward=FeedForward(bias=None)),
    keys=(TEMPERATURE, Key("", LOG_MULTIPLIER, "mscale_all_dim", default=0.0, of_rope=True)),
    sizes=Sizes(complete=complete),
    interleaved=True,
    classes={"Ministral3ForCausalLM": config_keys},
    only={"sliding_window": None},
    names=names.LLAMA,
)
