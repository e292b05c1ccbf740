"""Cohere 2 (Command R7B): attention and feed-forward side by side behind one layer norm, rope only with a window."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 4
"""The last of so many layers has neither window nor rope, where a file does not say which ones have."""


@dataclass(frozen=True, kw_only=True)
class Cohere2(Hyperparams):
    """What logits are multiplied by."""

    logit_scale: float


def hparams(r: HyperparamReader) -> Cohere2:
    hp = read_shared(r, interleaved=True, has_experts=False, eps=LAYER_NORM_EPS)
    scale = r.positive("logit_scale") or 1.0
    return hp.extended(Cohere2, windowed=read_windowed(r, hp, PERIOD), logit_scale=scale)


def tensors(hp: Cohere2) -> Tensors:
    block = layers.attention_tensors(hp) | layers.ffn_tensors(hp)
    del block["ffn_norm.weight"]
    return layers.model_tensors(hp, block)


def build(g: GraphBuilder, hp: Cohere2, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.layer_norm(g, hp, b, "attn_norm", x)
        q, k, v = layers.qkv(g, hp, b, h)
        if hp.windowed[i]:
            q, k = rope(q), rope(k)
        y = g.attention(q, k, v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, layers.linear(g, b, "attn_output", y))
        x = g.add(x, layers.ffn(g, b, h))
    return layers.scaled(g, layers.logits(g, hp, w, x, around_mean=True), hp.logit_scale)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for norms of q and k, for blocks one after the other, and for biases."""
    config.only_flags({"use_qk_norm": False, "use_parallel_block": True, "attention_bias": False})
    keys = layer_norm_keys(config, "layer_norm_eps") | {"logit_scale": config.real("logit_scale", 0.0625)}
    return keys | layer_window_keys(config, PERIOD)


ARCH = Architecture(
    name="cohere2",
    hparams=hparams,
    keys=frozenset({PATTERN, LAYER_NORM_EPS, "logit_scale"}),
    tensors=tensors,
    build=build,
    classes={"Cohere2ForCausalLM": config_keys},
    names={"input_layernorm": "attn_norm"} | names.ATTENTION | names.FFN,
    ropes=("default",),
    tied=True,
    reordered=False,
    writable=False,
)
