"""Arctic: beside attention and a dense feed-forward experts that are given the input of both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector

NORM = "ffn_norm_exps"
"""The norm before the experts; `ffn_norm` is that before the dense feed-forward."""


def tensors(hp: Hyperparams) -> Tensors:
    """The dense feed-forward is as wide as the model."""
    block = layers.attention_tensors(hp) | layers.moe_tensors(hp) | layers.ffn_tensors(replace(hp, n_ff=hp.n_embd))
    block |= {f"{NORM}.weight": vector(hp.n_embd)}
    return layers.model_tensors(hp, {name: want for name, want in block.items() if not name.endswith(".bias")})


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        y = g.add(x, layers.linear(g, b, "attn_output", h))
        y = g.add(y, layers.ffn(g, b, g.rms_norm(y, b["ffn_norm"], hp.eps)))
        x = g.add(y, layers.moe(g, hp, b, g.rms_norm(x, b[NORM], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers without experts, for biases, and for experts behind attention."""
    config.only({"moe_layer_frequency": 1})
    config.only_flags({"use_residual": True, "parallel_attn_mlp_res": True, "attention_bias": False})
    config.only({"sliding_window": 0})
    return expert_keys(config, "num_local_experts")


ARCH = Architecture(
    name="arctic",
    hparams=partial(read_shared, interleaved=True, has_experts=True),
    tensors=tensors,
    build=build,
    classes={"ArcticForCausalLM": config_keys},
    names=names.ATTENTION | names.moe("block_sparse_moe", "w1", "w3", "w2") | {
        "input_layernorm": "attn_norm", "residual_layernorm": "ffn_norm", "post_attention_layernorm": NORM,
        "residual_mlp.w1": "ffn_gate", "residual_mlp.w3": "ffn_up", "residual_mlp.w2": "ffn_down",
    },
    ropes=("default", "linear", "yarn"),
    writable=False,
)
