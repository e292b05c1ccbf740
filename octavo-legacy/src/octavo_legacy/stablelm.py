"""StableLM: layer norms, rope on a part of each head, in some attention and feed-forward side by side."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys, rotary_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Expected, Tensors, Weights, vector

PARALLEL = "use_parallel_residual"
"""Converters say true where config.json says nothing; what counts is whether the feed-forward has a norm before it."""


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp) | layers.ffn_tensors(hp) | {"attn_norm.bias": vector(hp.n_embd)}
    block |= {f"ffn_norm.{part}": Expected((hp.n_embd,), optional=True) for part in ("weight", "bias")}
    return layers.model_tensors(hp, block) | {"output_norm.bias": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.layer_norm(g, hp, b, "attn_norm", x)
        q, k, v = layers.qkv(g, hp, b, h)
        y = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", y))
        h = h if b.get("ffn_norm") is None else layers.layer_norm(g, hp, b, "ffn_norm", x)
        x = g.add(x, layers.ffn(g, b, h))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for norms of q and k, which are a layer norm for each head."""
    config.only_flags({"qk_layernorm": False})
    parallel = {PARALLEL: config.flag(PARALLEL, False)}
    return layer_norm_keys(config, "layer_norm_eps") | rotary_keys(config, default=0.25) | parallel


ARCH = Architecture(
    name="stablelm",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, PARALLEL}),
    tensors=tensors,
    build=build,
    classes={"StableLmForCausalLM": config_keys},
    names=names.LLAMA,
    ropes=("default", "linear"),
    writable=False,
)
