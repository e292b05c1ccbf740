"""BLOOM: layer norms, one of them of the embedding, attention that falls with the distance (ALiBi), GELU, biases."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import gpt2
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo_legacy.shared import unjoined_heads

MOST = "attention.max_alibi_bias"
USUAL, LENGTH = 8.0, 2048
"""What slopes of heads are made of, and the context that the published models were trained with, where a file does not
say."""


@dataclass(frozen=True, kw_only=True)
class Bloom(Hyperparams):
    """What the slopes of heads are made of."""

    alibi: float


def hparams(r: HyperparamReader) -> Bloom:
    hp = read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)
    return hp.extended(Bloom, alibi=r.positive(MOST) or USUAL)


def tensors(hp: Bloom) -> Tensors:
    found = {name: want for name, want in gpt2.tensors(hp).items() if name != "position_embd.weight"}
    return found | {f"token_embd_norm.{part}": vector(hp.n_embd) for part in ("weight", "bias")}


def build(g: GraphBuilder, hp: Bloom, w: Weights) -> Node:
    x = layers.layer_norm(g, hp, w, "token_embd_norm", g.get_rows(w["token_embd"], g.tokens))
    for i in range(hp.n_layer):
        b = w.block(i)
        heads = layers.joined_qkv(g, hp, b, layers.layer_norm(g, hp, b, "attn_norm", x))
        h = g.attention(*heads, layer=i, scale=hp.attention_scale, alibi=hp.alibi)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.plain_ffn(g, b, layers.layer_norm(g, hp, b, "ffn_norm", x), g.gelu))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for residuals that are taken behind the norms."""
    config.only_flags({"apply_residual_connection_post_layernorm": False})
    width = config.size("hidden_size", LIMITS["embedding_length"])
    return layer_norm_keys(config, "layer_norm_epsilon") | {
        "context_length": config.size("max_position_embeddings", LIMITS["context_length"], LENGTH),
        "attention.head_count_kv": config.size("num_attention_heads", LIMITS["attention.head_count"]),
        "feed_forward_length": 4 * width, "rope.freq_base": None, "rope.dimension_count": None,
    }


ARCH = Architecture(
    name="bloom",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, MOST}),
    tensors=tensors,
    build=build,
    classes={"BloomForCausalLM": config_keys, "BloomModel": config_keys},
    base="transformer.",
    layer="h",
    names={
        "input_layernorm": "attn_norm", "self_attention.query_key_value": "attn_qkv",
        "self_attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    },
    outer={
        "word_embeddings.weight": "token_embd.weight", "word_embeddings_layernorm.weight": "token_embd_norm.weight",
        "word_embeddings_layernorm.bias": "token_embd_norm.bias", "ln_f.weight": "output_norm.weight",
        "ln_f.bias": "output_norm.bias", "lm_head.weight": "output.weight",
    },
    key_aliases={
        "n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "seq_length": "max_position_embeddings",
    },
    remade=unjoined_heads,
    unwritten_tensors=("attn_qkv",),
    ropes=("default",),
    tied=True,
    writable=False,
)
