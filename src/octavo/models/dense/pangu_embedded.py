"""openPangu-Embedded: Llama with biases in attention, and rope on halves of a head."""

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture

ARCH = Architecture(
    name="pangu-embedded",
    network=llama.NETWORK,
    classes={"PanguEmbeddedForCausalLM": lambda config: {}},
    names=names.LLAMA,
    ropes=("default", "linear"),
)
