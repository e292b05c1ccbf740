"""MiniCPM3: latent attention, and embeddings, residuals and logits that are each multiplied by a number.

Files of llama.cpp have one matrix for keys and values; it is split when they are read, so that the cache keeps the
short vectors that it makes these of.
"""

from __future__ import annotations

import math

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import GGUFFile
from octavo.io.gguf.metadata import Metadata
from octavo.models.dense.minicpm import BASE_WIDTH, DEPTH_SCALE, EMBEDDING_SCALE
from octavo.models.dense.phi3 import with_longrope
from octavo.models.shared import latent_attention as latent
from octavo.models.shared import layers, names, unsplit
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.latent_attention import SIZES, Latent
from octavo.models.shared.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Latent:
    hp = with_longrope(r, read_shared(r, has_experts=False, equal_lengths=False))
    sizes = latent.read_sizes(r, hp)
    return hp.extended(Latent, **sizes, query_scale=1 / math.sqrt(sizes["key"]))


def tensors(hp: Latent) -> Tensors:
    return layers.model_tensors(hp, latent.attention_tensors(hp) | layers.ffn_tensors(hp))


def build(g: GraphBuilder, hp: Latent, w: Weights) -> Node:
    rope, residual = layers.rotary(g, hp.rope, w), DEPTH_SCALE / math.sqrt(hp.n_layer)
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), EMBEDDING_SCALE)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = latent.attend(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps), i, rope)
        x = g.add(x, layers.scaled(g, h, residual))
        h = layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps))
        x = g.add(x, layers.scaled(g, h, residual))
    return layers.scaled(g, layers.logits(g, hp, w, x), BASE_WIDTH / hp.n_embd)


def updated(file: GGUFFile) -> tuple[GGUFFile, Metadata]:
    """The file with keys and values apart. Where it does not say how long values are, all heads' are the width."""
    width, heads = (file.metadata.get_int(f"minicpm3.{n}", 0) for n in ("embedding_length", "attention.head_count"))
    return unsplit.split(file, width // max(1, heads))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for numbers that GGUF has no keys for, and for biases."""
    config.only({"scale_emb": EMBEDDING_SCALE, "scale_depth": DEPTH_SCALE, "dim_model_base": BASE_WIDTH})
    config.only_flags({"attention_bias": False, "mlp_bias": False})
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
    hparams=hparams,
    keys=frozenset(SIZES.values()),
    tensors=tensors,
    build=build,
    updated=updated,
    classes={"MiniCPM3ForCausalLM": config_keys},
    names=names.NORMS | names.FFN | {module: name for module, name in latent.NAMES.items() if name != "attn_q"},
    ropes=("default", "longrope"),
    tied=True,
    writable=False,
)
