"""Phi-3 and Phi-4: Llama with q, k and v in one matrix, gate and up in another, longrope and a window in all layers."""

from __future__ import annotations

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, rotary_keys, window_keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales


def hparams(r: HyperparamReader) -> Hyperparams:
    return windowed(with_longrope(r, read_shared(r, has_experts=False)))


def windowed(hp: Hyperparams) -> Hyperparams:
    """The same with the window in all layers, where there is one."""
    return replace(hp, windowed=(hp.n_window is not None,) * hp.n_layer)


def with_longrope(r: HyperparamReader, hp: Hyperparams) -> Hyperparams:
    """The same with a longrope where a file has the tensors of one, which it need not name."""
    stretched = any(f"rope_factors_{length}.weight" in r.shapes for length in ("long", "short"))
    return replace(hp, rope=replace(hp.rope, kind="longrope")) if stretched else hp


def tensors(hp: Hyperparams) -> Tensors:
    q, kv = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim
    products = {
        "attn_qkv.weight": matrix(q + 2 * kv, hp.n_embd),
        "attn_output.weight": matrix(hp.n_embd, q),
        "ffn_up.weight": matrix(2 * hp.n_ff, hp.n_embd),
        "ffn_down.weight": matrix(hp.n_embd, hp.n_ff),
    }
    norms = {f"{part}_norm.weight": vector(hp.n_embd) for part in ("attn", "ffn")}
    return layers.model_tensors(hp, norms | with_scales(products))


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        q, k, v = layers.joined_qkv(g, hp, b, h)
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale, window=hp.window(i))
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        gate, up = g.columns(layers.linear(g, b, "ffn_up", h), hp.n_ff, hp.n_ff)
        x = g.add(x, layers.linear(g, b, "ffn_down", g.swiglu(gate, up)))
    return layers.logits(g, hp, w, x)


def config_keys(config: Config) -> Keys:
    """The window, and the part of a head that rope turns."""
    return window_keys(config, 0) | rotary_keys(config, 1.0)


ARCH = Architecture(
    name="phi3",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={"Phi3ForCausalLM": config_keys},
    names=names.NORMS | {
        "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
        "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    },
    ropes=("default", "longrope"),
    writable=False,
)
