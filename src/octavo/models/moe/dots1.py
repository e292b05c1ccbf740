"""dots.llm1: norms of q and k, and DeepSeek's experts behind dense layers, chosen by sigmoids."""

from octavo.models.shared import experts, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.experts import SIGMOID
from octavo.models.shared.windows import window_of_some


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers with a window."""
    if window_of_some(config.replaced({"use_sliding_window": True, **config.values})):
        raise config.error("sliding_window", "is that of some layers", "full_attention in all")
    return experts.config_keys(config, SIGMOID, normalized=False) | experts.group_keys(config)


ARCH = Architecture(
    name="dots1",
    network=Decoder(mixer=Attention(qk_norm="heads"), feed_forward=experts.FEED_FORWARD),
    keys=experts.KEYS,
    sizes=experts.sizes(SIGMOID),
    experts=True,
    classes={"Dots1ForCausalLM": config_keys},
    names=names.LLAMA | names.QK_NORMS | names.ROUTED,
)
