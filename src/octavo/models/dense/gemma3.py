"""Gemma 3, text: GeGLU, norms before and behind, a window in most layers and a rope of their own for these."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, local_rope
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 6
"""The last of so many layers has no window, where a file does not say which ones have."""


@dataclass(frozen=True, kw_only=True)
class Gemma3(Hyperparams):
    """rope_local is that of layers with a window; scores are multiplied by query_scale; logits are capped, 0: not."""

    rope_local: Rope
    query_scale: float
    logit_cap: float


def hparams(r: HyperparamReader) -> Gemma3:
    hp = read_shared(r, has_experts=False)
    # The model of 62 layers has heads of another size than the width says, and scales by the width; no key says so.
    width = hp.n_embd / hp.n_head if hp.n_layer == 62 else hp.head_dim
    return hp.extended(
        Gemma3,
        windowed=read_windowed(r, hp, PERIOD),
        rope_local=Rope(hp.rope.dims, r.real("rope.freq_base_swa", 10000.0, 1.0), interleaved=False),
        query_scale=r.positive("attention.scale") or width**-0.5,
        logit_cap=r.positive("final_logit_softcapping") or 0.0,
    )


def tensors(hp: Gemma3) -> Tensors:
    behind = {f"post_{part}_norm.weight": vector(hp.n_embd) for part in ("attention", "ffw")}
    return layers.model_tensors(hp, layers.attention_tensors(hp, qk_norm=True) | layers.ffn_tensors(hp) | behind)


def build(g: GraphBuilder, hp: Gemma3, w: Weights) -> Node:
    rope_global, rope_local = layers.rotary(g, hp.rope, w), layers.rotary(g, hp.rope_local, w)
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), math.sqrt(hp.n_embd))
    for i in range(hp.n_layer):
        b = w.block(i)
        rope = rope_local if hp.windowed[i] else rope_global
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        q, k, v = layers.normed_qkv(g, hp, b, h)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.query_scale, window=hp.window(i))
        x = g.add(x, g.rms_norm(layers.linear(g, b, "attn_output", h), b["post_attention_norm"], hp.eps))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, g.rms_norm(layers.geglu_ffn(g, b, h), b["post_ffw_norm"], hp.eps))
    logits = layers.logits(g, hp, w, x)
    return g.soft_cap(logits, hp.logit_cap) if hp.logit_cap else logits


def config_keys(config: Config) -> Keys:
    """Raises ModelError for attention that is capped, or that looks ahead."""
    if config.values.get("attn_logit_softcapping") is not None:
        raise config.error("attn_logit_softcapping", f"is {brief(config.values['attn_logit_softcapping'])}", "null")
    config.only_flags({"use_bidirectional_attention": False})
    head = config.size("head_dim", LIMITS["attention.key_length"], 256)
    keys: Keys = {f"attention.{part}_length": head for part in ("key", "value")} | {"rope.dimension_count": head}
    keys["attention.scale"] = config.real("query_pre_attn_scalar", 256) ** -0.5
    keys["rope.freq_base"], keys["rope.freq_base_swa"] = rope_bases(config)
    if config.values.get("final_logit_softcapping") is not None:
        keys["final_logit_softcapping"] = config.real("final_logit_softcapping")
    return keys | layer_window_keys(config, PERIOD)


def rope_bases(config: Config) -> tuple[float, float]:
    """Of layers without a window and of those with one: by layers' kinds, or in older files side by side."""
    found, local = config.values.get("rope_parameters"), local_rope(config)
    full = found.get("full_attention") if isinstance(found, dict) else None
    return (
        config.real("rope_theta", 1e6, of=full if isinstance(full, dict) else None),
        config.real("rope_local_base_freq", 1e4) if local is None else config.real("rope_theta", 1e4, of=local),
    )


ARCH = Architecture(
    name="gemma3",
    hparams=hparams,
    keys=frozenset({"attention.scale", PATTERN, "final_logit_softcapping", "rope.freq_base_swa"}),
    tensors=tensors,
    build=build,
    classes={"Gemma3ForCausalLM": config_keys},
    names=names.POST_NORMS | names.ATTENTION | names.QK_NORMS | names.FFN,
    ropes=("default", "linear"),
    activation="gelu_pytorch_tanh",
    tied=True,
    norm_shift=1.0,
    writable=False,
)
