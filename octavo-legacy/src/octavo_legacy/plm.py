"""PLM 1.8B: latent attention, and a squared ReLU between the two matrices of feed-forwards."""

from __future__ import annotations

import math

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import latent_attention as latent
from octavo.models.shared import layers, names, unsplit
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import HyperparamReader, read_shared
from octavo.models.shared.latent_attention import SIZES, Latent
from octavo.models.shared.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Latent:
    """Raises ModelError for queries that are made of short vectors, too."""
    hp = read_shared(r, interleaved=True, has_experts=False, equal_lengths=False)
    sizes = latent.read_sizes(r, hp)
    if sizes["q_rank"]:
        raise r.error(SIZES["q_rank"], f"is {sizes['q_rank']}", "0")
    return hp.extended(Latent, **sizes, query_scale=1 / math.sqrt(sizes["key"]))


def tensors(hp: Latent) -> Tensors:
    return layers.model_tensors(hp, latent.attention_tensors(hp) | layers.plain_ffn_tensors(hp))


def build(g: GraphBuilder, hp: Latent, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        x = g.add(x, latent.attend(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps), i, rope))
        x = g.add(x, layers.plain_ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps), g.relu_squared))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases, and for queries that are made of short vectors, too."""
    config.only_flags({"attention_bias": False, "mlp_bias": False})
    config.only({"q_lora_rank": None})
    return latent.config_keys(config)


ARCH = Architecture(
    name="plm",
    hparams=hparams,
    keys=frozenset(SIZES.values()),
    tensors=tensors,
    build=build,
    updated=unsplit.split,
    classes={"PLMForCausalLM": config_keys},
    names=names.NORMS
    | {module: name for module, name in names.FFN.items() if name != "ffn_gate"}
    | {module: name for module, name in latent.NAMES.items() if not name.startswith("attn_q_")},
    ropes=("default",),
    activation="relu2",
    tied=True,
    reordered=False,
    writable=False,
)
