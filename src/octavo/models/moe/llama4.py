"""Llama 4, text: attention in chunks, layers without rope or chunks, one expert chosen by sigmoid and one for all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import PATTERN, periodic, read_windowed

PERIOD = 4
"""Each layer of this number has neither rope nor chunks; its scores grow with the position instead."""
CHUNK, SPAN, TEMPERATURE = 8192, 8192, 0.1
"""What files mean that do not say: positions of a chunk, of what makes scores grow, and by how much."""
STEP, SPAN_KEY, SCALE_KEY = "interleave_moe_layer_step", "attention.temperature_length", "attention.temperature_scale"


@dataclass(frozen=True, kw_only=True)
class Llama4(Hyperparams):
    """The last of each `step` layers has experts; q and k are normed where they are turned, if at all."""

    step: int
    span: int
    temperature: float
    qk_norm: bool


def hparams(r: HyperparamReader) -> Llama4:
    hp = read_shared(r, interleaved=True, has_experts=True)
    if hp.n_expert_used != 1:
        raise r.error("expert_used_count", f"is {hp.n_expert_used}", "1")
    if r.has("attention.sliding_window") and not hp.n_window:
        raise r.error("attention.sliding_window", "is 0, attention without chunks", "1 or more")
    hp = replace(hp, n_window=hp.n_window or CHUNK)
    return hp.extended(
        Llama4,
        windowed=read_windowed(r, hp, PERIOD),
        step=max(1, r.whole(STEP, 1, LIMITS["block_count"])),
        span=max(1, r.whole(SPAN_KEY, SPAN, LIMITS["context_length"])),
        temperature=(r.positive(SCALE_KEY) or 0.0) if r.has(SCALE_KEY) else TEMPERATURE,
        qk_norm=hp.n_expert != 128,  # no key says so
    )


def tensors(hp: Llama4) -> Tensors:
    attention = layers.attention_tensors(hp)
    moe = layers.moe_tensors(hp) | layers.shared_expert_tensors(hp, hp.n_ff_expert)
    return layers.model_tensors(hp, lambda i: attention | (layers.ffn_tensors(hp) if (i + 1) % hp.step else moe))


def build(g: GraphBuilder, hp: Llama4, w: Weights) -> Node:
    rope, ones = layers.rotary(g, hp.rope, w), constant(np.ones(hp.head_dim, np.float32), "ones")
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        if (i + 1) % PERIOD == 0:
            q = g.scale_by_position(q, hp.span, hp.temperature, offset=1) if hp.temperature else q
        else:  # a norm without weights is the same before the turn and after it
            q, k = (g.rms_norm(y, ones, hp.eps) if hp.qk_norm else y for y in (q, k))
            q, k = rope(q), rope(k)
        h = g.attention(q, k, v, layer=i, scale=hp.attention_scale, window=-hp.window(i))
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, layers.ffn(g, b, h) if (i + 1) % hp.step else _moe(g, b, h))
    return layers.logits(g, hp, w, x)


def _moe(g: GraphBuilder, b: Weights, h: Node) -> Node:
    """What goes into the chosen expert, not what comes out of it, is multiplied by its share."""
    router = g.mul_mat(b["ffn_gate_inp"], h)
    ids = g.top_k(router, 1)
    given = g.mul(g.as_one_row(h), g.sigmoid(g.gather(router, ids)))
    gate, up = (layers.experts(g, b, f"ffn_{n}_exps", given, ids) for n in ("gate", "up"))
    y = layers.experts(g, b, "ffn_down_exps", g.swiglu(gate, up), ids)
    return g.add(g.join_of_heads(y), layers.ffn(g, b, h, "_shexp"))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for what GGUF has no words for: other layers without rope or with experts, norms of q and k."""
    n = config.size("num_hidden_layers", LIMITS["block_count"])
    step, experts = config.size("interleave_moe_layer_step", n, 1), config.size("num_local_experts", 1 << 16)
    roped = periodic(n, PERIOD)
    kinds = ["chunked_attention" if turned else "full_attention" for turned in roped]
    usual = {
        "no_rope_layers": [int(turned) for turned in roped], "layer_types": kinds, "attention_bias": False,
        "moe_layers": list(range(step - 1, n, step)), "use_qk_norm": experts != 128, "num_experts_per_tok": 1,
    }
    for key, allowed in usual.items():
        if (value := config.values.get(key)) not in (None, [], allowed):
            raise config.error(key, f"is {brief(value)}", str(allowed))
    most, context, tuned = LIMITS["feed_forward_length"], LIMITS["context_length"], "attn_temperature_tuning"
    said = {
        "attention.sliding_window": (config.size("attention_chunk_size", context), CHUNK),
        SPAN_KEY: (config.size("floor_scale", context, SPAN), SPAN),
        SCALE_KEY: (config.real("attn_scale", TEMPERATURE) if config.flag(tuned, True) else 0.0, TEMPERATURE),
    }
    return {field: value for field, (value, known) in said.items() if value != known} | {
        "expert_feed_forward_length": config.size("intermediate_size", most),
        "feed_forward_length": config.size("intermediate_size_mlp", most),
        "expert_count": experts, "expert_used_count": 1, STEP: step,
    }


ARCH = Architecture(
    name="llama4",
    hparams=hparams,
    keys=frozenset({PATTERN, STEP, SPAN_KEY, SCALE_KEY}),
    tensors=tensors,
    build=build,
    classes={"Llama4ForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | {
        "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
        "feed_forward.router": "ffn_gate_inp", "feed_forward.experts.gate_up_proj": names.GATE_UP,
        **{f"feed_forward.experts.*.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
        "feed_forward.experts.down_proj": "ffn_down_exps", "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
        "feed_forward.shared_expert.up_proj": "ffn_up_shexp", "feed_forward.shared_expert.down_proj": "ffn_down_shexp",
    },
    ropes=("default", "llama3"),
    reordered=False,
    writable=False,
    columns="halves",
)
