"""Llama as an encoder (llama-embed), as NVIDIA has it: tokens see all of a text, and there are no logits."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import llama
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import CAUSAL, HyperparamReader, Hyperparams, read_shared, refuse_causal
from octavo.models.shared.weights import Tensors, Weights

OUTER = {name: gguf for name, gguf in names.OUTER.items() if not name.startswith("lm_head.")}
POOLINGS = {"avg": 1, "cls": 2, "last": 3}
"""Numbers of GGUF's `pooling_type` by what config.json calls them."""


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_encoder(r, interleaved=True)


def read_encoder(r: HyperparamReader, *, interleaved: bool) -> Hyperparams:
    """Those of any architecture with RMS norms whose tokens all see each other.

    Raises ModelError for a file that says that tokens see none behind them, and for experts and a window.
    """
    hp = read_shared(r, interleaved=interleaved, has_experts=False)
    refuse_causal(r)
    if hp.n_window is not None:
        raise r.error("attention.sliding_window", f"is {hp.n_window}", "0")
    return hp


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp, output_bias=True) | layers.ffn_tensors(hp, bias=True)
    found = layers.model_tensors(hp, block)
    return {name: want for name, want in found.items() if not name.startswith("output.")}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention_of_all(rope(q), rope(k), v, i, hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return g.rms_norm(g.last(x), w["output_norm"], hp.eps)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a kind of pooling that is not computed."""
    pooling = config.values.get("pooling", "avg")
    if pooling not in POOLINGS:
        raise config.error("pooling", f"is {brief(pooling)}", " or ".join(POOLINGS))
    return {CAUSAL: False, "pooling_type": POOLINGS[pooling]}


ARCH = Architecture(
    name="llama-embed",
    hparams=hparams,
    keys=frozenset({CAUSAL}),
    tensors=tensors,
    build=build,
    classes={"LlamaBidirectionalModel": config_keys},
    names=names.LLAMA,
    outer=OUTER,
    ropes=llama.ARCH.ropes,
    encoder=True,
    writable=False,
)
