"""GPT-J: attention and feed-forward side by side behind one layer norm, rope on neighbours of a part of each head."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, interleaved=True, has_experts=False, eps=LAYER_NORM_EPS)


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp) | layers.plain_ffn_tensors(hp)
    del block["ffn_norm.weight"]
    block |= {"attn_norm.bias": vector(hp.n_embd), "ffn_down.bias": vector(hp.n_embd), "ffn_up.bias": vector(hp.n_ff)}
    return layers.model_tensors(hp, block, output_bias=True) | {"output_norm.bias": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.layer_norm(g, hp, b, "attn_norm", x)
        q, k, v = layers.qkv(g, hp, b, h)
        y = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", y))
        x = g.add(x, layers.plain_ffn(g, b, h, g.gelu))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Rope is on the first `rotary_dim` values of each head. Raises ModelError for scores of another scale."""
    config.only_flags({"scale_attn_weights": True})
    width = config.size("hidden_size", LIMITS["embedding_length"])
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    return layer_norm_keys(config, "layer_norm_epsilon") | {
        "attention.head_count_kv": heads,
        "feed_forward_length": config.size("intermediate_size", LIMITS["feed_forward_length"], 4 * width),
        "rope.dimension_count": config.size("rotary_dim", LIMITS["attention.key_length"], width // heads),
    }


ARCH = Architecture(
    name="gptj",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"GPTJForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "attn.q_proj": "attn_q", "attn.k_proj": "attn_k", "attn.v_proj": "attn_v",
        "attn.out_proj": "attn_output", "mlp.fc_in": "ffn_up", "mlp.fc_out": "ffn_down",
    },
    outer={
        "wte.weight": "token_embd.weight", "ln_f.weight": "output_norm.weight", "ln_f.bias": "output_norm.bias",
        "lm_head.weight": "output.weight", "lm_head.bias": "output.bias",
    },
    ignored=(".attn.bias", ".attn.masked_bias", ".attn.embed_positions"),
    key_aliases={
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "activation_function": "hidden_act",
    },
    ropes=("default",),
    activation="gelu_new",
    reordered=False,
    writable=False,
)
