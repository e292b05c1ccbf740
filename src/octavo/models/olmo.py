"""OLMo 1: Llama with layer norms that have no weights."""

from __future__ import annotations

import numpy as np

from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models import layers, names
from octavo.models.architecture import Architecture
from octavo.models.config import Config, Keys
from octavo.models.hparams import LAYER_NORM_EPS, RMS_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.weights import Tensors, Weights

NORMS = ("attn_norm.weight", "ffn_norm.weight", "output_norm.weight")


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, interleaved=True, has_experts=False, eps=LAYER_NORM_EPS)


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp, output_bias=True) | layers.ffn_tensors(hp)
    return {name: want for name, want in layers.model_tensors(hp, block).items() if not name.endswith(NORMS)}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    ones = constant(np.ones(hp.n_embd, np.float32), "ones")
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.layer_norm(x, ones, None, hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.layer_norm(x, ones, None, hp.eps)))
    h = g.layer_norm(g.last(x), ones, None, hp.eps)
    return g.mul_mat(w["token_embd"], h) if w.get("output") is None else layers.linear(g, w, "output", h)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for q, k and v that are cut off."""
    if (clip := config.values.get("clip_qkv")) is not None:
        raise config.error("clip_qkv", f"is {clip!r}", "null")
    return {RMS_EPS: None, LAYER_NORM_EPS: 1e-5}


ARCH = Architecture(
    name="olmo",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"OlmoForCausalLM": config_keys},
    names=names.ATTENTION | names.FFN,
    outer={name: names.OUTER[name] for name in ("embed_tokens.weight", "lm_head.weight")},
    ropes=("default", "linear"),
    writable=False,
)
