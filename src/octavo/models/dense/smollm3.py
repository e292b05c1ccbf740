"""SmolLM3: Llama without rope in every fourth layer."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.reader import brief

PERIOD = 4
"""Each layer of this number has no rope; a file can't say another number."""


def config_keys(config: Config) -> Keys:
    """Raises ModelError for other layers without rope."""
    period = config.values.get("no_rope_layer_interval", PERIOD)
    usual = [int((i + 1) % PERIOD != 0) for i in range(config.n_layer)]
    found = config.values.get("no_rope_layers") or (usual if period == PERIOD else None)
    if found != usual:
        problem = f"is {brief(found if found else period)}"
        raise config.error("no_rope_layers", problem, f"0, for no rope, in every layer of {PERIOD} and 1 in others")
    return {}


ARCH = Architecture(
    name="smollm3",
    network=Decoder(mixer=Attention(rope=lambda hp, layer: (layer + 1) % PERIOD != 0)),
    interleaved=True,
    classes={"SmolLM3ForCausalLM": config_keys},
    only=dict.fromkeys(("use_sliding_window", "mlp_bias", "attention_bias"), False),
    names=names.LLAMA,
    ropes=("default", "linear", "yarn", "llama3"),
    tied=True,
)
