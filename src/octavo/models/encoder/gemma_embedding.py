"""EmbeddingGemma: Gemma 3 whose tokens see all of a text, or with a window as far ahead as back; projections behind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import gemma3
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared, refuse_causal
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import Tensors, Weights, matrix, vector
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed

PERIOD = 6
"""The last of so many layers has no window, where a file does not say which ones have."""
DENSE = ("dense_2_feat_in", "dense_2_feat_out", "dense_3_feat_in", "dense_3_feat_out")
"""Widths of the projections that an embedding goes through, one after the other; none where a file has no such key."""


@dataclass(frozen=True, kw_only=True)
class GemmaEmbedding(Hyperparams):
    """rope_local is that of layers with a window; `dense` has the shapes of projections, [out, in]."""

    rope_local: Rope
    dense: tuple[tuple[int, int], ...]


def hparams(r: HyperparamReader) -> GemmaEmbedding:
    hp = read_shared(r, has_experts=False)
    refuse_causal(r)
    shapes = [(_width(r, f"dense_{i}_feat_out"), _width(r, f"dense_{i}_feat_in")) for i in (2, 3)]
    dense = tuple((out, width) for out, width in shapes if out)
    joins = [hp.n_embd, *(n for shape in dense for n in shape[::-1])]
    if any(a != b for a, b in zip(joins[::2], joins[1::2], strict=False)):
        raise r.error(DENSE[0], f"widths {joins[1:]} do not follow {hp.n_embd}", "each of what comes")
    rope_local = Rope(hp.rope.dims, r.real("rope.freq_base_swa", 10000.0, 1.0), interleaved=False)
    return hp.extended(GemmaEmbedding, rope_local=rope_local, dense=dense, windowed=read_windowed(r, hp, PERIOD))


def _width(r: HyperparamReader, field: str) -> int:
    """The width that a key gives, 0 where there is none."""
    width, most = r.integer(field, 0), LIMITS["feed_forward_length"]
    if not 0 <= width <= most:
        raise r.error(field, f"{width} is out of range", f"0 to {most}")
    return width


def tensors(hp: GemmaEmbedding) -> Tensors:
    behind = {f"post_{part}_norm.weight": vector(hp.n_embd) for part in ("attention", "ffw")}
    block = layers.attention_tensors(hp, qk_norm=True) | layers.ffn_tensors(hp) | behind
    dense = {f"dense_{i}.weight": matrix(*shape) for i, shape in enumerate(hp.dense, 2)}
    return layers.model_tensors(hp, block) | dense


def build(g: GraphBuilder, hp: GemmaEmbedding, w: Weights) -> Node:
    rope_global, rope_local = layers.rotary(g, hp.rope, w), layers.rotary(g, hp.rope_local, w)
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), math.sqrt(hp.n_embd))
    for i in range(hp.n_layer):
        b = w.block(i)
        rope, window = (rope_local, hp.window(i) // 2 + 1) if hp.windowed[i] else (rope_global, 0)
        q, k, v = layers.normed_qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention_of_all(rope(q), rope(k), v, i, hp.attention_scale, window)
        x = g.add(x, g.rms_norm(layers.linear(g, b, "attn_output", h), b["post_attention_norm"], hp.eps))
        h = layers.geglu_ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps))
        x = g.add(x, g.rms_norm(h, b["post_ffw_norm"], hp.eps))
    return g.rms_norm(g.last(x), w["output_norm"], hp.eps)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a model that looks back only, and for scores scaled by another size than the heads'."""
    if not config.flag("use_bidirectional_attention", False):
        raise config.error("use_bidirectional_attention", "is false", "true, in a Gemma3TextModel")
    head = config.size("head_dim", LIMITS["attention.key_length"], 256)
    if (scalar := config.values.get("query_pre_attn_scalar", 256)) != head:
        raise config.error("query_pre_attn_scalar", f"is {brief(scalar)}", f"{head}, as head_dim")
    keys: Keys = {f"attention.{part}_length": head for part in ("key", "value")} | {"rope.dimension_count": head}
    keys["rope.freq_base"], keys["rope.freq_base_swa"] = gemma3.rope_bases(config)
    return keys | {"attention.causal": False} | layer_window_keys(config, PERIOD)


ARCH = Architecture(
    name="gemma-embedding",
    hparams=hparams,
    keys=frozenset({PATTERN, "rope.freq_base_swa", "attention.causal", *DENSE}),
    tensors=tensors,
    build=build,
    classes={"Gemma3TextModel": config_keys},
    names=gemma3.ARCH.names,
    ropes=("default", "linear"),
    activation="gelu_pytorch_tanh",
    tied=True,
    norm_shift=1.0,
    encoder=True,
    writable=False,
)
