"""MiniCPM3: latent attention, and embeddings, residuals and logits that are each multiplied by a number.

Files of llama.cpp have one matrix for keys and values; it is split when they are read, so that the cache keeps the
short vectors that it makes these of.
"""

import math
from dataclasses import replace

from octavo.io.gguf import GGUFFile
from octavo.io.gguf.metadata import Metadata
from octavo.models.dense.minicpm import BASE_WIDTH, DEPTH_SCALE, EMBEDDING_SCALE
from octavo.models.shared import latent_attention as latent
from octavo.models.shared import latent_kv, names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Decoder
from octavo.models.shared.hparams import with_longrope
from octavo.models.shared.latent_attention import Latent
from octavo.models.shared.reader import LIMITS, MetadataReader


def complete(r: MetadataReader, hp: Latent) -> Latent:
    hp = with_longrope(r, hp)
    latent.check(r, hp)
    return replace(
        hp, query_scale=1 / math.sqrt(hp.key), embedding_scale=EMBEDDING_SCALE,
        residual_scale=DEPTH_SCALE / math.sqrt(hp.n_layer), logit_scale=BASE_WIDTH / hp.n_embd,
    )


def updated(file: GGUFFile) -> tuple[GGUFFile, Metadata]:
    """The file with keys and values apart. Where it does not say how long values are, all heads' are the width."""
    width, heads = (file.metadata.get_int(f"minicpm3.{n}", 0) for n in ("embedding_length", "attention.head_count"))
    return latent_kv.split(file, width // max(1, heads))


def config_keys(config: Config) -> Keys:
    most = LIMITS["embedding_length"]
    width, heads = config.size("hidden_size", most), config.size("num_attention_heads", most)
    usual = {
        "q_lora_rank": 768, "kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64,
        "v_head_dim": max(1, width // heads),
    }
    said = {word: value for word, value in config.values.items() if value is not None}
    return latent.config_keys(config.replaced(usual | said))


ARCH = Architecture(
    name="minicpm3",
    network=Decoder(mixer=latent.LatentAttention()),
    keys=latent.KEYS,
    sizes=Sizes(kind=Latent, complete=complete, equal_lengths=False),
    only={
        "scale_emb": EMBEDDING_SCALE, "scale_depth": DEPTH_SCALE, "dim_model_base": BASE_WIDTH, "attention_bias": False,
        "mlp_bias": False,
    },
    updated=updated,
    classes={"MiniCPM3ForCausalLM": config_keys},
    names=names.NORMS | names.FFN | {module: name for module, name in latent.NAMES.items() if name != "attn_q"},
    ropes=("default", "longrope"),
    tied=True,
)
