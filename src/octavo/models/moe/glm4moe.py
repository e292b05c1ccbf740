"""GLM-4.5 to 4.7: rope on half of each head, norms of q and k in some, and DeepSeek's experts, chosen by sigmoids."""

from octavo.models.shared import experts, names
from octavo.models.shared.architecture import Architecture, NextLayer
from octavo.models.shared.config import Config, Keys, nextn_keys
from octavo.models.shared.decoder import Attention, Decoder, NormNames
from octavo.models.shared.experts import SIGMOID


def config_keys(config: Config) -> Keys:
    keys = experts.config_keys(config, SIGMOID, normalized=True) | experts.group_keys(config)
    return keys | nextn_keys(config)


ARCH = Architecture(
    name="glm4moe",
    network=Decoder(
        mixer=Attention(qk_norm="heads or none"), feed_forward=experts.FEED_FORWARD,
        norms=NormNames(feed_forward="post_attention_norm"),
    ),
    keys=experts.KEYS,
    sizes=experts.sizes(SIGMOID),
    experts=True,
    next_layer=NextLayer(gives_normed=False),
    classes={"Glm4MoeForCausalLM": config_keys},
    rotary_part=0.5,
    names=names.LATE_NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | names.ROUTED | names.NEXTN,
)
