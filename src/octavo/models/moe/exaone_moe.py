"""K-EXAONE: norms of q and k, rope only with a window if any layer has one, DeepSeek's experts chosen by sigmoids."""

from dataclasses import replace

from octavo.models.dense import exaone4
from octavo.models.shared import experts, names
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.experts import SIGMOID
from octavo.models.shared.reader import NEXTN


def config_keys(config: Config) -> Keys:
    keys = experts.config_keys(config, SIGMOID, normalized=True) | experts.group_keys(config)
    return keys | exaone4.config_keys(config)


ARCH = replace(
    exaone4.ARCH,
    name="exaone-moe",
    network=Decoder(mixer=Attention(qk_norm="heads", rope="window if any"), feed_forward=experts.FEED_FORWARD),
    keys=(*experts.KEYS, NEXTN),
    sizes=experts.sizes(SIGMOID),
    experts=True,
    classes={"ExaoneMoeForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | names.ROUTED | {
        "mlp.e_score_correction_bias": "exp_probs_b.bias",
    },
    key_aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
    unused=("mtp.",),
)
