"""gpt-oss: experts with biases and a clamped gate, attention with sinks, a window in every other layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 2
"""The last of so many layers has no window, where a file does not say which ones have."""
SLOPE, LIMIT = 1.702, 7.0
"""Numbers of the clamped SwiGLU, which no key says."""


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = read_shared(r, has_experts=True)
    return replace(hp, rope=replace(hp.rope, whole_pairs=False), windowed=read_windowed(r, hp, PERIOD))


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp, bias=True) | layers.moe_tensors(hp, bias=True)
    del block["ffn_norm.weight"]
    block |= {"post_attention_norm.weight": vector(hp.n_embd), "attn_sinks.weight": vector(hp.n_head)}
    return layers.model_tensors(hp, block | {"attn_output.bias": vector(hp.n_embd)})


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    gated = partial(g.clamped_swiglu, slope=SLOPE, limit=LIMIT)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        q, k, sinks = rope(q), rope(k), b["attn_sinks"]
        h = g.attention(q, k, v, layer=i, scale=hp.attention_scale, window=hp.window(i), sinks=sinks)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["post_attention_norm"], hp.eps)
        router = layers.linear(g, b, "ffn_gate_inp", h)
        ids = g.top_k(router, hp.n_expert_used)
        x = g.add(x, layers.through_experts(g, b, h, ids, g.soft_max(g.gather(router, ids)), gated))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for another gate, and for attention without biases."""
    for word, usual in (("swiglu_alpha", SLOPE), ("swiglu_limit", LIMIT)):
        if (found := config.real(word, usual)) != usual:
            raise config.error(word, f"is {found:g}", f"{usual:g}")
    config.only_flags({"attention_bias": True})
    width = config.size("intermediate_size", LIMITS["expert_feed_forward_length"])
    keys = expert_keys(config, "num_local_experts") | {"expert_feed_forward_length": width}
    return keys | layer_window_keys(config, PERIOD, 128)


ARCH = Architecture(
    name="gpt-oss",
    hparams=hparams,
    keys=frozenset({PATTERN}),
    tensors=tensors,
    build=build,
    classes={"GptOssForCausalLM": config_keys},
    names=names.ATTENTION | names.switch("mlp.experts") | {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
        "self_attn.sinks": "attn_sinks", "mlp.router": "ffn_gate_inp",
        "mlp.experts.gate_up_proj": names.GATE_UP, "mlp.experts.down_proj": "ffn_down_exps",
        "mlp.experts.gate_up_proj_bias": "ffn_gate_exps.bias ffn_up_exps.bias",
        "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    },
    writable=False,
    whole_pairs=False,
    columns="alternate",
)
