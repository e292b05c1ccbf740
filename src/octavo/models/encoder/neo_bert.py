"""NeoBERT: an encoder with RMS norms before its parts, rope on neighbours, SwiGLU, and heads of q, k and v in turn."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.encoder import llama_embed
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import CAUSAL, LIMITS, RMS_EPS, HyperparamReader, Hyperparams
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales

ROUNDED = 8
"""Widths of feed-forwards are multiples of this."""


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = llama_embed.read_encoder(r, interleaved=True)
    if hp.n_head_kv != hp.n_head:
        raise r.error("attention.head_count_kv", f"is {hp.n_head_kv}", str(hp.n_head))
    return hp


def tensors(hp: Hyperparams) -> Tensors:
    products = with_scales({
        "attn_qkv.weight": matrix(3 * hp.n_head * hp.head_dim, hp.n_embd),
        "attn_output.weight": matrix(hp.n_embd, hp.n_head * hp.head_dim),
        "ffn_up.weight": matrix(2 * hp.n_ff, hp.n_embd),
        "ffn_down.weight": matrix(hp.n_embd, hp.n_ff),
    })
    block = products | {f"{name}.weight": vector(hp.n_embd) for name in ("attn_norm", "ffn_norm")}
    outer = {"token_embd.weight": matrix(hp.n_vocab, hp.n_embd), "enc.output_norm.weight": vector(hp.n_embd)}
    return outer | {f"blk.{i}.{name}": want for i in range(hp.n_layer) for name, want in block.items()}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope, size = layers.rotary(g, hp.rope, w), hp.head_dim
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = layers.linear(g, b, "attn_qkv", g.rms_norm(x, b["attn_norm"], hp.eps))
        heads = g.split_heads(h, hp.n_head)  # [T, H, 3 D]
        q, k, v = (g.slice_heads(heads, start, size) for start in (0, size, 2 * size))
        h = g.attention_of_all(rope(q), rope(k), v, i, hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = layers.linear(g, b, "ffn_up", g.rms_norm(x, b["ffn_norm"], hp.eps))
        gate, up = g.columns(h, hp.n_ff, hp.n_ff)
        x = g.add(x, layers.linear(g, b, "ffn_down", g.swiglu(gate, up)))
    return g.rms_norm(g.last(x), w["enc.output_norm"], hp.eps)


def config_keys(config: Config) -> Keys:
    """Two thirds of the width that config.json says are that of the gate, as many are that of up."""
    width = 2 * config.size("intermediate_size", LIMITS["feed_forward_length"]) // 3
    return {
        CAUSAL: False, RMS_EPS: config.real("norm_eps", 1e-6), "pooling_type": 2,
        "context_length": config.size("max_length", LIMITS["context_length"], 1024),
        "feed_forward_length": -(-width // ROUNDED) * ROUNDED,
    }


ARCH = Architecture(
    name="neo-bert",
    hparams=hparams,
    keys=frozenset({CAUSAL}),
    tensors=tensors,
    build=build,
    classes={"NeoBERT": config_keys, "NeoBERTLMHead": config_keys},
    names={
        "attention_norm": "attn_norm", "qkv": "attn_qkv", "wo": "attn_output", "ffn_norm": "ffn_norm",
        "ffn.w12": "ffn_up", "ffn.w3": "ffn_down",
    },
    outer={"encoder.weight": "token_embd.weight", "layer_norm.weight": "enc.output_norm.weight"},
    layer="transformer_encoder",
    unused=("decoder.",),
    ignored=("freqs_cis",),
    ropes=("default",),
    tied=True,
    encoder=True,
    writable=False,
)
