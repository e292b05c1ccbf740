"""Refact: attention that falls with the distance (ALiBi) in place of rope, one head of keys, layer norms, SwiGLU."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights

ALIBI = 8.0
"""What slopes of heads are made of."""
MULTIPLE = 256
"""What the feed-forward's width is rounded up to a multiple of."""


def tensors(hp: Hyperparams) -> Tensors:
    found = layers.model_tensors(hp, layers.attention_tensors(hp) | layers.ffn_tensors(hp))
    return {name: want for name, want in found.items() if not name.endswith(".bias") and name != "rope_freqs.weight"}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        heads = layers.qkv(g, hp, b, layers.layer_norm(g, hp, b, "attn_norm", x))
        h = g.attention(*heads, layer=i, scale=hp.attention_scale, alibi=ALIBI)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, layers.layer_norm(g, hp, b, "ffn_norm", x)))
    return layers.logits(g, hp, w, x, around_mean=True)


def config_keys(config: Config) -> Keys:
    """The feed-forward is as wide as two thirds of `n_inner`. Raises ModelError for more heads of keys."""
    config.only_flags({"multi_query": True})
    width = config.size("hidden_size", LIMITS["embedding_length"])
    inner = 2 * config.size("intermediate_size", LIMITS["feed_forward_length"], 4 * width) // 3
    return {
        "attention.head_count_kv": 1, "feed_forward_length": -(-inner // MULTIPLE) * MULTIPLE,
        "rope.freq_base": None, "rope.dimension_count": None,
    }


ARCH = Architecture(
    name="refact",
    hparams=partial(read_shared, has_experts=False),
    tensors=tensors,
    build=build,
    classes={"GPTRefactForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "attn.q": "attn_q", "attn.kv": "attn_k attn_v", "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm", "mlp.gate_up_proj": "ffn_gate ffn_up", "mlp.c_proj": "ffn_down",
    },
    outer={
        "wte.weight": "token_embd.weight", "ln_f.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    },
    key_aliases={
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "layer_norm_epsilon": "rms_norm_eps",
    },
    ropes=("default",),
    writable=False,
)
