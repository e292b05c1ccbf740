"""Orion: Llama with layer norms, and rope on halves of a head."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.decoder import Decoder, NormNames

ARCH = Architecture(
    name="orion",
    network=Decoder(norms=NormNames(bias=True)),
    layer_norms="rms_norm_eps",
    only={"attention_bias": False},
    classes={"OrionForCausalLM": lambda config: {}},
    names=names.LLAMA,
    ropes=("default", "linear"),
)
