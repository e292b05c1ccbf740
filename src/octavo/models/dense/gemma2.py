"""Gemma 2: GeGLU, norms before and behind, a window in every other layer, scores and logits that are capped."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 2
"""The last of so many layers has no window, where a file does not say which ones have."""
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
"""Fields of scores' cap and of logits', and what files mean that do not say. 0 is no cap."""
WINDOW = 4096


@dataclass(frozen=True, kw_only=True)
class Gemma2(Hyperparams):
    """Scores are multiplied by query_scale, and capped; so are logits. A cap of 0 is none."""

    query_scale: float
    score_cap: float
    logit_cap: float


def hparams(r: HyperparamReader) -> Gemma2:
    hp = read_shared(r, has_experts=False)
    if not r.has("attention.sliding_window"):
        hp = replace(hp, n_window=WINDOW)
    # The model of 46 layers has heads of another size than the width says, and scales by the width; no key says so.
    width = hp.n_embd / hp.n_head if hp.n_layer == 46 else hp.head_dim
    score_cap, logit_cap = ((r.positive(f) or 0.0) if r.has(f) else usual for f, usual in CAPS.items())
    return hp.extended(
        Gemma2,
        windowed=read_windowed(r, hp, PERIOD),
        query_scale=r.positive("attention.scale") or width**-0.5,
        score_cap=score_cap,
        logit_cap=logit_cap,
    )


def tensors(hp: Gemma2) -> Tensors:
    behind = {f"post_{part}_norm.weight": vector(hp.n_embd) for part in ("attention", "ffw")}
    return layers.model_tensors(hp, layers.attention_tensors(hp) | layers.ffn_tensors(hp) | behind)


def build(g: GraphBuilder, hp: Gemma2, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), math.sqrt(hp.n_embd))
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, i, hp.query_scale, window=hp.window(i), cap=hp.score_cap)
        x = g.add(x, g.rms_norm(layers.linear(g, b, "attn_output", h), b["post_attention_norm"], hp.eps))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, g.rms_norm(layers.geglu_ffn(g, b, h), b["post_ffw_norm"], hp.eps))
    logits = layers.logits(g, hp, w, x)
    return g.soft_cap(logits, hp.logit_cap) if hp.logit_cap else logits


def config_keys(config: Config) -> Keys:
    """Raises ModelError for attention that looks ahead."""
    config.only_flags({"use_bidirectional_attention": False})
    head = config.size("head_dim", LIMITS["attention.key_length"], 256)
    keys: Keys = {f"attention.{part}_length": head for part in ("key", "value")} | {"rope.dimension_count": head}
    keys["attention.scale"] = config.real("query_pre_attn_scalar", 256) ** -0.5
    for word, usual in CAPS.items():
        capped = config.values.get(word, usual) is not None
        keys[word] = config.real(word, usual) if capped else 0.0
    return keys | layer_window_keys(config, PERIOD, WINDOW)


ARCH = Architecture(
    name="gemma2",
    hparams=hparams,
    keys=frozenset({"attention.scale", PATTERN, *CAPS}),
    tensors=tensors,
    build=build,
    classes={"Gemma2ForCausalLM": config_keys},
    names=names.POST_NORMS | names.ATTENTION | names.FFN,
    ropes=("default", "linear"),
    activation="gelu_pytorch_tanh",
    tied=True,
    norm_shift=1.0,
    writable=False,
)
