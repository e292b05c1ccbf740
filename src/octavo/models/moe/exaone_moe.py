"""K-EXAONE: norms of q and k, rope only with a window if any layer has one, DeepSeek's experts chosen by sigmoids."""

from dataclasses import replace

from octavo.models.dense import exaone4
from octavo.models.shared import experts, names
from octavo.models.shared.architecture import NextLayer, Sizes
from octavo.models.shared.config import Config, Keys, nextn_keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.experts import SIGMOID, Routed
from octavo.models.shared.reader import NEXTN, MetadataReader, brief
from octavo.models.shared.windows import PATTERN, windowed_layers


def complete(r: MetadataReader, hp: Routed) -> Routed:
    """Where a file does not say it, layers that guess tokens have windows as the first layers have them."""
    windowed = hp.next_windowed or hp.windowed[: hp.n_next]
    return replace(hp, next_windowed=windowed, **experts.read(r, hp, SIGMOID))


def config_keys(config: Config) -> Keys:
    keys = experts.config_keys(config, SIGMOID, normalized=True) | experts.group_keys(config)
    keys |= exaone4.config_keys(config) | nextn_keys(config)
    kinds, count = config.values.get("mtp_layer_types"), keys.get(NEXTN, 0)
    if kinds is None or not count or config.values.get("layer_types") is None:
        return keys
    if not isinstance(kinds, list) or len(kinds) < count:
        raise config.error("mtp_layer_types", f"is {brief(kinds)}", f"one for each of {count} layers")
    return keys | {PATTERN: windowed_layers(config, 0) + [kind == "sliding_attention" for kind in kinds[:count]]}


ARCH = replace(
    exaone4.ARCH,
    name="exaone-moe",
    network=Decoder(mixer=Attention(qk_norm="heads", rope="window if any"), feed_forward=experts.DENSE_NEXT),
    keys=experts.KEYS,
    sizes=Sizes(kind=Routed, complete=complete),
    experts=True,
    next_layer=NextLayer(apart=True),
    classes={"ExaoneMoeForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | names.ROUTED | {
        "mlp.e_score_correction_bias": "exp_probs_b.bias", **names.NEXTN,
    },
    key_aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
)
