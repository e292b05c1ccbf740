"""EuroBERT: Llama as an encoder, with rope on halves of a head in GGUF, too."""

from octavo.models.encoder import llama_embed
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture

ARCH = Architecture(
    name="eurobert",
    network=llama_embed.NETWORK,
    sizes=llama_embed.SIZES,
    classes=dict.fromkeys(("EuroBertModel", "EuroBertForMaskedLM"), lambda config: {}),
    names=names.LLAMA,
    outer=llama_embed.OUTER,
    unused=("lm_head.",),
)
