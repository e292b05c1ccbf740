"""Gemma 3, text: GeGLU, norms before and behind, a window in most layers and a rope of their own for these."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import layers, names
from octavo.models.architecture import Architecture
from octavo.models.config import Config, Keys, brief, window_keys
from octavo.models.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.rope import Rope
from octavo.models.weights import Tensors, Weights, vector

PERIOD = 6
"""Of so many layers the last has no window, where a file does not say which ones have."""


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
    shared = vars(hp) | {"windowed": _windowed(r, hp) if hp.n_window else (False,) * hp.n_layer}
    return Gemma3(
        **shared,
        rope_local=Rope(hp.rope.dims, r.real("rope.freq_base_swa", 10000.0, 1.0), interleaved=False),
        query_scale=r.positive("attention.scale") or width**-0.5,
        logit_cap=r.positive("final_logit_softcapping") or 0.0,
    )


def _windowed(r: HyperparamReader, hp: Hyperparams) -> tuple[bool, ...]:
    key = "attention.sliding_window_pattern"
    if r.is_array(key):
        flags = tuple(bool(flag) for flag in r.metadata.get_bools(r.key(key)))
        if len(flags) != hp.n_layer:
            raise r.error(key, f"has {len(flags)} values", f"one for each of {hp.n_layer} layers")
        return flags
    period = r.integer(key, PERIOD)
    if not 1 <= period <= LIMITS["block_count"]:
        raise r.error(key, f"{period} is out of range", f"1 to {LIMITS['block_count']}")
    return tuple(_periodic(hp.n_layer, period))


def tensors(hp: Gemma3) -> Tensors:
    behind = {f"post_{part}_norm.weight": vector(hp.n_embd) for part in ("attention", "ffw")}
    return layers.model_tensors(hp, layers.attention_tensors(hp, qk_norm=True) | layers.ffn_tensors(hp) | behind)


def build(g: GraphBuilder, hp: Gemma3, w: Weights) -> Node:
    rope_global, rope_local = layers.rotary(g, hp.rope, w), layers.rotary(g, hp.rope_local, w)
    x = layers.scaled_rows(g, w["token_embd"], g.tokens, math.sqrt(hp.n_embd))
    for i in range(hp.n_layer):
        b = w.block(i)
        rope = rope_local if hp.windowed[i] else rope_global
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        q, k, v = layers.qkv(g, hp, b, h)
        q, k = g.rms_norm(q, b["attn_q_norm"], hp.eps), g.rms_norm(k, b["attn_k_norm"], hp.eps)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.query_scale, window=hp.window(i))
        x = g.add(x, g.rms_norm(layers.linear(g, b, "attn_output", h), b["post_attention_norm"], hp.eps))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        h = g.geglu(layers.linear(g, b, "ffn_gate", h), layers.linear(g, b, "ffn_up", h))
        x = g.add(x, g.rms_norm(layers.linear(g, b, "ffn_down", h), b["post_ffw_norm"], hp.eps))
    logits = layers.logits(g, hp, w, x)
    return g.soft_cap(logits, hp.logit_cap) if hp.logit_cap else logits


def config_keys(config: Config) -> Keys:
    """Raises ModelError for attention that is capped, or that looks ahead."""
    if config.values.get("attn_logit_softcapping") is not None:
        raise config.error("attn_logit_softcapping", f"is {brief(config.values['attn_logit_softcapping'])}", "null")
    if config.flag("use_bidirectional_attention", False):
        raise config.error("use_bidirectional_attention", "is true", "false")
    head = config.size("head_dim", LIMITS["attention.key_length"], 256)
    keys: Keys = {f"attention.{part}_length": head for part in ("key", "value")} | {"rope.dimension_count": head}
    keys["attention.scale"] = config.real("query_pre_attn_scalar", 256) ** -0.5
    keys["rope.freq_base"], keys["rope.freq_base_swa"] = _rope_bases(config)
    if config.values.get("final_logit_softcapping") is not None:
        keys["final_logit_softcapping"] = config.real("final_logit_softcapping")
    return keys | _window_keys(config)


def _rope_bases(config: Config) -> tuple[float, float]:
    """Of layers without a window and of those with one: by layers' kinds, or in older files side by side."""
    found = config.values.get("rope_parameters")
    bases = []
    for kind, key, usual in (("full", "rope_theta", 1e6), ("sliding", "rope_local_base_freq", 1e4)):
        part = found.get(f"{kind}_attention") if isinstance(found, dict) else None
        bases.append(config.real("rope_theta", usual, of=part) if isinstance(part, dict) else config.real(key, usual))
    return bases[0], bases[1]


def _window_keys(config: Config) -> Keys:
    """The window, and which layers have it where that is not llama.cpp's own pattern."""
    windowed = _windowed_layers(config)
    if not any(windowed):
        return {}
    keys = window_keys(config, 4096)
    if not keys:
        raise config.error("sliding_window", "is null or 0", "a number, as layer_types has sliding_attention")
    period = windowed.index(False) + 1 if False in windowed else PERIOD
    if windowed != _periodic(len(windowed), period):
        return keys | {"attention.sliding_window_pattern": windowed}
    return keys if windowed == _periodic(len(windowed), PERIOD) else keys | {"attention.sliding_window_pattern": period}


def _periodic(n: int, period: int) -> list[bool]:
    """Windows in all layers but the last of each `period`."""
    return [(i + 1) % period != 0 for i in range(n)]


def _windowed_layers(config: Config) -> list[bool]:
    n, kinds = config.size("num_hidden_layers", LIMITS["block_count"]), config.values.get("layer_types")
    if kinds is None:
        return _periodic(n, config.size("sliding_window_pattern", LIMITS["block_count"], PERIOD))
    if not isinstance(kinds, list) or len(kinds) != n or set(map(str, kinds)) - {"sliding_attention", "full_attention"}:
        raise config.error("layer_types", f"is {brief(kinds)}", f"{n} of sliding_attention, full_attention")
    return [kind == "sliding_attention" for kind in kinds]


ARCH = Architecture(
    name="gemma3",
    hparams=hparams,
    keys=frozenset(
        {"attention.scale", "attention.sliding_window_pattern", "final_logit_softcapping", "rope.freq_base_swa"}
    ),
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
