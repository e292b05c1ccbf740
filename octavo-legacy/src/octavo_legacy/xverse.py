"""XVERSE: Llama by another name."""

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture

ARCH = Architecture(
    name="xverse",
    network=llama.NETWORK,
    interleaved=True,
    classes={"XverseForCausalLM": lambda config: {}},
    names=names.LLAMA,
    ropes=("default", "linear"),
)
