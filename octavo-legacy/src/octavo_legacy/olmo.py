"""OLMo 1: Llama with layer norms that have no weights; in some q, k and v are clipped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, RMS_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights
from octavo_legacy.shared import clipped

NORMS = ("attn_norm.weight", "ffn_norm.weight", "output_norm.weight")
CLIP = "attention.clamp_kqv"


@dataclass(frozen=True, kw_only=True)
class Olmo(Hyperparams):
    """The greatest magnitude of values of q, k and v, 0 for any."""

    clip: float


def hparams(r: HyperparamReader) -> Olmo:
    hp = read_shared(r, interleaved=True, has_experts=False, eps=LAYER_NORM_EPS)
    return hp.extended(Olmo, clip=r.positive(CLIP) or 0.0)


def tensors(hp: Olmo) -> Tensors:
    block = layers.attention_tensors(hp, output_bias=True) | layers.ffn_tensors(hp)
    return {name: want for name, want in layers.model_tensors(hp, block).items() if not name.endswith(NORMS)}


def build(g: GraphBuilder, hp: Olmo, w: Weights) -> Node:
    ones = constant(np.ones(hp.n_embd, np.float32), "ones")
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.layer_norm(x, ones, None, hp.eps)
        q, k, v = (clipped(g, layers.linear(g, b, f"attn_{n}", h), hp.clip) for n in "qkv")
        q, k, v = g.split_heads(q, hp.n_head), g.split_heads(k, hp.n_head_kv), g.split_heads(v, hp.n_head_kv)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.layer_norm(x, ones, None, hp.eps)))
    h = g.layer_norm(g.last(x), ones, None, hp.eps)
    return g.mul_mat(w["token_embd"], h) if w.get("output") is None else layers.linear(g, w, "output", h)


def config_keys(config: Config) -> Keys:
    clip = None if config.values.get("clip_qkv") is None else config.real("clip_qkv")
    return {RMS_EPS: None, LAYER_NORM_EPS: 1e-5, CLIP: clip}


ARCH = Architecture(
    name="olmo",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, CLIP}),
    tensors=tensors,
    build=build,
    classes={"OlmoForCausalLM": config_keys},
    names=names.ATTENTION | names.FFN,
    outer={name: names.OUTER[name] for name in ("embed_tokens.weight", "lm_head.weight")},
    ropes=("default", "linear"),
    writable=False,
)
