"""Command R and Aya: attention and feed-forward side by side behind one layer norm, logits that are scaled.

Command R+ has norms of q and k, one for each head, and is refused.
"""

from dataclasses import replace

from octavo.models.dense import cohere2
from octavo.models.shared.decoder import PARALLEL, Decoder

ARCH = replace(
    cohere2.ARCH,
    name="command-r",
    network=Decoder(norms=PARALLEL),
    windows=None,
    classes={"CohereForCausalLM": lambda config: {}},
    only={"use_qk_norm": False, "attention_bias": False},
    ropes=("default", "linear"),
)
