"""Gemma, the first: Llama with GeGLU, whose embeddings are multiplied by the root of the width."""

from __future__ import annotations

import math

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, has_experts=False)


def tensors(hp: Hyperparams) -> Tensors:
    return layers.model_tensors(hp, layers.attention_tensors(hp) | layers.ffn_tensors(hp))


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), math.sqrt(hp.n_embd))
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.geglu_ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for attention that looks ahead. Older files name the GELU with tanh as if it were the other."""
    config.only_flags({"use_bidirectional_attention": False})
    head = config.size("head_dim", LIMITS["attention.key_length"], 256)
    keys: Keys = {f"attention.{part}_length": head for part in ("key", "value")} | {"rope.dimension_count": head}
    named = {word: None for word in ("hidden_act", "hidden_activation") if config.values.get(word) == "gelu"}
    return keys | named


ARCH = Architecture(
    name="gemma",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={"GemmaForCausalLM": config_keys},
    names=names.LLAMA,
    ropes=("default", "linear"),
    activation="gelu_pytorch_tanh",
    tied=True,
    norm_shift=1.0,
    writable=False,
)
