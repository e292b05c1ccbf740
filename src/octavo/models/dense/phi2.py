"""Phi-1, 1.5 and 2: attention and feed-forward side by side behind one layer norm, biases everywhere, GELU."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys, rotary_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector


@dataclass(frozen=True, kw_only=True)
class Phi2(Hyperparams):
    """Whether q, k and v are one matrix, as in files of the first converters."""

    joined: bool


def hparams(r: HyperparamReader) -> Phi2:
    hp = read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)
    return hp.extended(Phi2, joined="blk.0.attn_qkv.weight" in r.shapes)


def tensors(hp: Phi2) -> Tensors:
    attention = layers.joined_qkv_tensors(hp, bias=True) if hp.joined else layers.attention_tensors(hp, bias=True)
    block = attention | layers.plain_ffn_tensors(hp)
    del block["ffn_norm.weight"]
    block |= {f"{name}.bias": vector(hp.n_embd) for name in ("attn_norm", "attn_output", "ffn_down")}
    block["ffn_up.bias"] = vector(hp.n_ff)
    return layers.model_tensors(hp, block, output_bias=True) | {"output_norm.bias": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: Phi2, w: Weights) -> Node:
    rope, qkv = layers.rotary(g, hp.rope, w), layers.joined_qkv if hp.joined else layers.qkv
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.layer_norm(g, hp, b, "attn_norm", x)
        q, k, v = qkv(g, hp, b, h)
        y = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", y))
        x = g.add(x, layers.plain_ffn(g, b, h, g.gelu))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for norms of q and k."""
    config.only_flags({"qk_layernorm": False})
    return layer_norm_keys(config, "layer_norm_eps") | rotary_keys(config, default=0.5)


ARCH = Architecture(
    name="phi2",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"PhiForCausalLM": config_keys},
    names=names.ATTENTION | {
        "input_layernorm": "attn_norm", "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    },
    outer={
        "embed_tokens.weight": "token_embd.weight", "final_layernorm.weight": "output_norm.weight",
        "final_layernorm.bias": "output_norm.bias", "lm_head.weight": "output.weight", "lm_head.bias": "output.bias",
    },
    ropes=("default", "linear"),
    activation="gelu_new",
    writable=False,
)
