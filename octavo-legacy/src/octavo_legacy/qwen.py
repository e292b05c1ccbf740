"""Qwen 1: q, k and v in one matrix with biases; the feed-forward is half as wide as a file says."""

from __future__ import annotations

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Vocabulary
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector

WIDTH = "feed_forward_length"


def hparams(r: HyperparamReader) -> Hyperparams:
    """A file counts the rows of gate and up together."""
    hp = read_shared(r, has_experts=False)
    if hp.n_ff % 2:
        raise r.error(WIDTH, f"{hp.n_ff} is odd", "the widths of gate and up together")
    return replace(hp, n_ff=hp.n_ff // 2)


def tensors(hp: Hyperparams) -> Tensors:
    attention = layers.joined_qkv_tensors(hp) | {"attn_qkv.bias": vector((hp.n_head + 2 * hp.n_head_kv) * hp.head_dim)}
    return layers.model_tensors(hp, attention | layers.ffn_tensors(hp, bias=True))


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.joined_qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """The context ends where scores would grow with its logarithm, or the rope's base with it.

    Raises ModelError for rope on a part of a head.
    """
    config.only({"rotary_pct": 1.0})
    length = config.size("max_position_embeddings", LIMITS["context_length"])
    if config.flag("use_logn_attn", False) or config.flag("use_dynamic_ntk", False):
        length = min(length, config.size("seq_length", LIMITS["context_length"], length))
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    return {"context_length": length, "attention.head_count_kv": heads}


ARCH = Architecture(
    name="qwen",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={"QWenLMHeadModel": config_keys},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.w2": "ffn_gate", "mlp.w1": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    outer={
        "wte.weight": "token_embd.weight", "ln_f.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    },
    key_aliases={"layer_norm_epsilon": "rms_norm_eps", "kv_channels": "head_dim", "rotary_emb_base": "rope_theta"},
    vocabulary=Vocabulary(
        file="qwen.tiktoken", pre="qwen2", nfc=True,
        behind=("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))),
    ),
    ropes=("default",),
    writable=False,
)
