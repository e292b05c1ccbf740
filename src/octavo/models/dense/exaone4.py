"""EXAONE 4: norms behind attention and feed-forward only, norms of q and k, rope only with a window if any have one."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, window_keys
from octavo.models.shared.decoder import POST_NORMS, Attention, Decoder
from octavo.models.shared.reader import brief
from octavo.models.shared.windows import Windows, layer_window_keys

WINDOWS = Windows(4)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a pattern of windows in letters beside no list, and for a window that no layer has."""
    if not window_keys(config, 0):
        return {}
    pattern = config.values.get("sliding_window_pattern")
    if isinstance(pattern, str):
        period = len(pattern)
        if config.values.get("layer_types") is None and pattern != "L" * (period - 1) + "G":
            raise config.error("sliding_window_pattern", f"is {brief(pattern)}", "L and at last G, or layer_types")
        config = config.replaced({**config.values, "sliding_window_pattern": period})
    keys = layer_window_keys(config, WINDOWS.period or 0)
    if not keys:
        raise config.error("sliding_window", "is not null, though layer_types has none", "null")
    return keys


ARCH = Architecture(
    name="exaone4",
    network=Decoder(mixer=Attention(qk_norm="heads", rope="window if any"), norms=POST_NORMS),
    windows=WINDOWS,
    classes={"Exaone4ForCausalLM": config_keys},
    names=names.ATTENTION | names.QK_NORMS | names.POST_NORMS | names.FFN,
    ropes=("default", "linear", "yarn", "llama3"),
)
