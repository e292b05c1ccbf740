"""GPT-2: learned positions, layer norms, biases everywhere, q, k and v in one matrix, GELU."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.remaking import columns_as_rows
from octavo.models.shared.weights import Tensors, Weights, matrix, vector


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.joined_qkv_tensors(hp, bias=True) | layers.plain_ffn_tensors(hp)
    block |= {f"{name}.bias": vector(hp.n_embd) for name in ("attn_norm", "ffn_norm", "ffn_down")}
    block["ffn_up.bias"] = vector(hp.n_ff)
    outer = {"position_embd.weight": matrix(hp.n_ctx_train, hp.n_embd), "output_norm.bias": vector(hp.n_embd)}
    return {n: want for n, want in layers.model_tensors(hp, block).items() if n != "rope_freqs.weight"} | outer


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    x = g.add(g.get_rows(w["token_embd"], g.tokens), g.get_rows(w["position_embd"], g.positions))
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.joined_qkv(g, hp, b, layers.layer_norm(g, hp, b, "attn_norm", x))
        x = g.add(x, layers.linear(g, b, "attn_output", g.attention(q, k, v, layer=i, scale=hp.attention_scale)))
        x = g.add(x, layers.plain_ffn(g, b, layers.layer_norm(g, hp, b, "ffn_norm", x), g.gelu))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for scores that are scaled otherwise, and for what looks at another text."""
    usual = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
    config.only_flags(usual)
    width = config.size("hidden_size", LIMITS["embedding_length"])
    return layer_norm_keys(config, "layer_norm_epsilon") | {
        "attention.head_count_kv": config.size("num_attention_heads", LIMITS["attention.head_count"]),
        "feed_forward_length": config.size("intermediate_size", LIMITS["feed_forward_length"], 4 * width),
        "rope.freq_base": None, "rope.dimension_count": None,
    }


def remade(name: str, tensor: LazyTensor, hp: Hyperparams) -> LazyTensor:
    """Matrices of layers, whose outputs are columns in a checkpoint."""
    return columns_as_rows(tensor) if name.startswith("blk.") and len(tensor.shape) == 2 else tensor


ARCH = Architecture(
    name="gpt2",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"GPT2LMHeadModel": config_keys},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    outer={
        "wte.weight": "token_embd.weight", "wpe.weight": "position_embd.weight", "ln_f.weight": "output_norm.weight",
        "ln_f.bias": "output_norm.bias", "lm_head.weight": "output.weight",
    },
    ignored=(".attn.bias", ".attn.masked_bias"),
    key_aliases={
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "activation_function": "hidden_act",
    },
    remade=remade,
    unwritten_tensors=("attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    activation="gelu_new",
    tied=True,
    writable=False,
)
