"""Falcon: attention and feed-forward side by side behind one layer norm or two, few heads of keys, GELU."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Expected, Tensors, Weights, vector
from octavo_legacy.shared import unjoined_heads

SECOND = "attn_norm_2"
"""The norm before attention where that has one of its own; `attn_norm` is that before the feed-forward then."""


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.joined_qkv_tensors(hp) | layers.plain_ffn_tensors(hp, bias=True)
    del block["ffn_norm.weight"]
    block |= {"attn_norm.bias": vector(hp.n_embd)}
    block |= {f"{SECOND}.{part}": Expected((hp.n_embd,), optional=True) for part in ("weight", "bias")}
    return layers.model_tensors(hp, block) | {"output_norm.bias": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.layer_norm(g, hp, b, "attn_norm", x)
        own = h if b.get(SECOND) is None else layers.layer_norm(g, hp, b, SECOND, x)
        q, k, v = layers.joined_qkv(g, hp, b, own)
        y = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", y))
        x = g.add(x, layers.plain_ffn(g, b, h, g.gelu_erf))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for the first models, whose scores fall with the distance or whose parts follow each other."""
    config.only_flags({"alibi": False, "parallel_attn": True})
    newer = config.flag("new_decoder_architecture", False)
    if not newer:
        config.only_flags({"multi_query": True})
    width = config.size("hidden_size", LIMITS["embedding_length"])
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    limit = LIMITS["feed_forward_length"]
    return layer_norm_keys(config, "layer_norm_epsilon") | {
        "attention.head_count_kv": config.size("num_key_value_heads", heads, heads) if newer else 1,
        "feed_forward_length": config.size("intermediate_size", limit, 4 * width),
    }


ARCH = Architecture(
    name="falcon",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"FalconForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names={
        "input_layernorm": "attn_norm", "ln_mlp": "attn_norm", "ln_attn": SECOND,
        "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
        "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    },
    outer={
        "word_embeddings.weight": "token_embd.weight", "ln_f.weight": "output_norm.weight",
        "ln_f.bias": "output_norm.bias", "lm_head.weight": "output.weight",
    },
    key_aliases={
        "num_kv_heads": "num_key_value_heads", "ffn_hidden_size": "intermediate_size", "activation": "hidden_act",
        "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_head_kv": "num_key_value_heads",
    },
    remade=unjoined_heads,
    unwritten_tensors=("attn_qkv",),
    ropes=("default", "linear"),
    activation="gelu",
    tied=True,
    writable=False,
)
