"""Hunyuan: norms of q and k behind the rope, whose base a factor of NTK's may stretch."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.reader import LIMITS

NAMES = names.NORMS | names.ATTENTION | {
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
}
STRETCHED = {1000.0: 1 << 18}
"""Tokens of context that a rope's `alpha` makes of 32,768, which config.json says as before."""
ATTENTION = Attention(qk_norm="heads behind rope")
NETWORK = Decoder(mixer=ATTENTION)
ONLY = {"use_qk_norm": True, "use_cla": False}
"""Heads without norms and shared caches are refused."""


def config_keys(config: Config) -> Keys:
    """The rope's base: theta * alpha^(d / (d - 2)) for heads of d values.

    Raises ModelError for a rope that follows the length of the text.
    """
    found = rope_parameters(config)
    if found.get("rope_type", found.get("type")) != "dynamic":
        return {}
    alpha, context = config.real("alpha", of=found), config.size("max_position_embeddings", LIMITS["context_length"])
    d = config.size("head_dim", LIMITS["attention.key_length"], max(3, config.width // config.n_head))
    theta = config.real("rope_theta", of=found) if "rope_theta" in found else config.real("rope_theta", 10000.0)
    return {
        "rope.freq_base": theta * alpha ** (d / max(1, d - 2)),
        "context_length": max(context, STRETCHED.get(alpha, 1)) if context == 1 << 15 else context,
    }


ARCH = Architecture(
    name="hunyuan-dense",
    network=NETWORK,
    classes={"HunYuanDenseV1ForCausalLM": config_keys},
    only=ONLY,
    names=NAMES | names.FFN,
    ropes=("default", "dynamic"),
)
