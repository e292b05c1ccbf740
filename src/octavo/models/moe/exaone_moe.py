"""K-EXAONE: norms of q and k, rope only with a window if any layer has one, DeepSeek's experts chosen by sigmoids."""

from dataclasses import replace

from octavo.models.dense import exaone4
from octavo.models.shared import experts, names
from octavo.models.shared.architecture import NextLayer, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.experts import SIGMOID, Routed
from octavo.models.shared.reader import MetadataReader


def complete(r: MetadataReader, hp: Routed) -> Routed:
    """Where a file does not say it, layers that guess tokens have windows as the first layers have them."""
    windowed = hp.next_windowed or hp.windowed[: hp.n_next]
    return replace(hp, next_windowed=windowed, **experts.read(r, hp, SIGMOID))


def config_keys(config: Config) -> Keys:
    keys = experts.config_keys(config, SIGMOID, normalized=True) | experts.group_keys(config)
    return keys | exaone4.config_keys(config)


ARCH = replace(
    exaone4.ARCH,
    name="exaone-moe",
    network=Decoder(mixer=Attention(qk_norm="heads", rope="window if any"), feed_forward=experts.DENSE_NEXT),
    keys=experts.KEYS,
    sizes=Sizes(kind=Routed, complete=complete),
    experts=True,
    next_layer=NextLayer(),
    classes={"ExaoneMoeForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | names.ROUTED | {
        "mlp.e_score_correction_bias": "exp_probs_b.bias",
    },
    key_aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
    unused=("mtp.",),
)
