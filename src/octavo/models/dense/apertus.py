"""Apertus: norms of q and k, and between the feed-forward's two matrices an xIELU whose numbers are learned."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights

NUMBERS = {f"mlp.act_fn.{name}": f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")}
"""Their keys stand without the architecture's name."""


@dataclass(frozen=True, kw_only=True)
class Apertus(Hyperparams):
    """xielu: by layer what op `xielu` takes: positive, negative, beta, least."""

    xielu: tuple[tuple[float, float, float, float], ...]


def hparams(r: HyperparamReader) -> Apertus:
    """Of a file's numbers the first two are in a softplus, the second over beta."""
    hp = read_shared(r, has_experts=False)
    lists = [r.metadata.get_floats(key).tolist() for key in NUMBERS.values()]
    for key, values in zip(NUMBERS.values(), lists, strict=True):
        if len(values) != hp.n_layer or not all(math.isfinite(value) and abs(value) < 1e3 for value in values):
            raise r.metadata.fault(key, f"has {len(values)} values, or some out of range", f"{hp.n_layer} up to 1000")
    each = zip(*lists, strict=True)
    return hp.extended(Apertus, xielu=tuple((_softplus(p), b + _softplus(n), b, least) for p, n, b, least in each))


def _softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def tensors(hp: Apertus) -> Tensors:
    attention = layers.attention_tensors(hp, output_bias=True, qk_norm=True)
    return layers.model_tensors(hp, attention | layers.plain_ffn_tensors(hp))


def build(g: GraphBuilder, hp: Apertus, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i, numbers in enumerate(hp.xielu):
        b = w.block(i)
        q, k, v = layers.normed_qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        h = layers.linear(g, b, "ffn_up", g.rms_norm(x, b["ffn_norm"], hp.eps))
        x = g.add(x, layers.linear(g, b, "ffn_down", g.xielu(h, *numbers)))
    return layers.logits(g, hp, w, x)


ARCH = Architecture(
    name="apertus",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={"ApertusForCausalLM": lambda config: {}},
    names=names.ATTENTION | names.QK_NORMS | {
        "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    },
    layer_scalars=NUMBERS,
    ropes=("default", "linear", "llama3"),
    activation="xielu",
    writable=False,
)
