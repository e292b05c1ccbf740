"""PLM 1.8B: latent attention, and a squared ReLU between the two matrices of feed-forwards."""

import math
from dataclasses import replace

from octavo.models.shared import latent_attention as latent
from octavo.models.shared import latent_kv, names
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout
from octavo.models.shared.decoder import Decoder, FeedForward
from octavo.models.shared.latent_attention import Latent
from octavo.models.shared.reader import MetadataReader


def complete(r: MetadataReader, hp: Latent) -> Latent:
    """Raises ModelError for queries that are made of short vectors, too."""
    latent.check(r, hp)
    if hp.q_rank:
        raise r.error(latent.SIZES["q_rank"], f"is {hp.q_rank}", "0")
    return replace(hp, query_scale=1 / math.sqrt(hp.key))


ARCH = Architecture(
    name="plm",
    network=Decoder(
        mixer=latent.LatentAttention(), feed_forward=FeedForward(activation="relu_squared", plain=True)
    ),
    keys=latent.KEYS,
    sizes=Sizes(kind=Latent, complete=complete, equal_lengths=False),
    interleaved=True,
    only={"attention_bias": False, "mlp_bias": False, "q_lora_rank": None},
    updated=latent_kv.split,
    classes={"PLMForCausalLM": latent.config_keys},
    names=names.NORMS
    | {module: name for module, name in names.FFN.items() if name != "ffn_gate"}
    | {module: name for module, name in latent.NAMES.items() if not name.startswith("attn_q_")},
    ropes=("default",),
    activation="relu2",
    tied=True,
    layout=TensorLayout(permuted=False),
)
