"""Gemma 3n, text: four streams of a token of which layers see the first (AltUp), and an embedding for each layer.

Beside attention there are two thin matrices (Laurel), and the first layers keep the largest values of their gates only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist

import numpy as np

from octavo.formats import QTensor
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.dense import gemma3, gemma4
from octavo.models.dense.gemma4 import FF, KV, READERS, Gemma4
from octavo.models.shared import layers, names, per_layer
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector, with_scales
from octavo.models.shared.windows import PATTERN, layer_window_keys, read_windowed, windowed_layers

PERIOD = 5
"""The last of so many layers has no window, where a file does not say which ones have."""
STREAMS, ACTIVE, SPREADS = "altup.num_inputs", "altup.active_idx", "activation_sparsity_scale"
MOST_STREAMS = 16
LEAST = 1e-5
"""The least mean square that a stream is taken to have."""
LAUREL = "blk.0.laurel_l.weight"
OWN_CACHES = 20
"""Layers with caches of their own, where a file does not say how many read another's."""


@dataclass(frozen=True, kw_only=True)
class Gemma3n(Gemma4):
    """All heads are of one size here.

    n_stream  streams of a token
    n_laurel  rows of the first of the two thin matrices
    spreads   by layer, over how many standard deviations the gate keeps its values; -inf for all
    """

    n_stream: int
    n_laurel: int
    spreads: tuple[float, ...]


def hparams(r: HyperparamReader) -> Gemma3n:
    hp = read_shared(r, has_experts=False, by_layer=True)
    windowed, kv = read_windowed(r, hp, PERIOD), r.size(KV, hp.n_head)
    if not hp.n_window:
        raise r.error("attention.sliding_window", "is missing or 0", "tokens that layers with a window see")
    if (active := r.whole(ACTIVE, 0, MOST_STREAMS)) != 0:
        raise r.error(ACTIVE, f"is {active}", "0")
    if (streams := r.whole(STREAMS, 4, MOST_STREAMS)) < 2:
        raise r.error(STREAMS, f"{streams} is out of range", f"2 to {MOST_STREAMS}")
    cap = r.positive("final_logit_softcapping") if r.has("final_logit_softcapping") else 30.0
    return replace(hp, windowed=windowed).extended(
        Gemma3n,
        rope_local=Rope(hp.rope.dims, r.real("rope.freq_base_swa", 10000.0, 1.0), interleaved=False),
        dim_local=hp.head_dim,
        layer_kv=(kv,) * hp.n_layer,
        layer_ff=r.sizes(FF, hp.n_layer),
        n_reader=gemma4.readers_of(r, windowed, max(0, hp.n_layer - OWN_CACHES)),
        n_each=r.whole(per_layer.LENGTH, 256, LIMITS["embedding_length"]),
        logit_cap=cap or 0.0,
        joined=False,
        n_stream=streams,
        n_laurel=r.shapes.get(LAUREL, (64,))[0],
        spreads=_spreads(r, hp.n_layer),
    )


def _spreads(r: HyperparamReader, n_layer: int) -> tuple[float, ...]:
    values = tuple(map(float, r.metadata.get_floats(r.key(SPREADS))))
    if len(values) != n_layer or not all(value < math.inf for value in values):
        raise r.error(SPREADS, f"has {len(values)} values, or some that are no numbers", f"{n_layer}, one a layer")
    return values


def tensors(hp: Gemma3n) -> Tensors:
    streams = Expected((hp.n_stream - 1, hp.n_embd, hp.n_embd))
    outer = {"altup_proj.weight": streams, "altup_unembd_proj.weight": streams} | per_layer.tensors(hp, hp.n_each)
    return layers.model_tensors(hp, partial(_block, hp)) | outer


def _block(hp: Gemma3n, layer: int) -> Tensors:
    block, n, width = gemma4.block_tensors(hp, layer), hp.n_stream, vector(hp.n_embd)
    del block["layer_output_scale.weight"]
    laurel = {"laurel_l.weight": matrix(hp.n_laurel, hp.n_embd), "laurel_r.weight": matrix(hp.n_embd, hp.n_laurel)}
    coefs = {"predict_coef": n * n, "correct_coef": n}
    return block | with_scales(laurel) | {
        "laurel_post_norm.weight": width, "altup_router_norm.weight": width, "altup_correct_scale.weight": width,
        "altup_router.weight": matrix(n, hp.n_embd),
        **{f"altup_{name}.weight": matrix(rows, n) for name, rows in coefs.items()},
    }


def build(g: GraphBuilder, hp: Gemma3n, w: Weights) -> Node:
    ropes = layers.rotary(g, hp.rope, w), layers.rotary(g, hp.rope_local, None)
    x = layers.scaled(g, g.get_rows(w["token_embd"], g.tokens), math.sqrt(hp.n_embd))
    given = per_layer.embeddings(g, hp, w, x, hp.n_each)
    streams, others = _spread(g, hp, w, x), _others(g, hp)
    for i in range(hp.n_layer):
        b = w.block(i)
        streams = _predicted(g, hp, streams, _coefs(g, hp, b, "altup_predict_coef", _first(g, hp, streams)))
        x = _first(g, hp, streams)
        h = g.rms_norm(x, b["attn_norm"], hp.eps)
        thin = layers.linear(g, b, "laurel_r", layers.linear(g, b, "laurel_l", h))
        thin = g.add(h, g.rms_norm(thin, b["laurel_post_norm"], hp.eps))
        h = layers.linear(g, b, "attn_output", gemma4.attention(g, hp, b, h, i, ropes[hp.windowed[i]]))
        x = g.add(x, g.rms_norm(h, b["post_attention_norm"], hp.eps))
        x = layers.scaled(g, g.add(x, thin), math.sqrt(0.5))
        h = _ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps), hp.spreads[i])
        x = g.add(x, g.rms_norm(h, b["post_ffw_norm"], hp.eps))
        coefs = g.as_columns(_coefs(g, hp, b, "altup_correct_coef", x))
        streams = g.correct_streams(streams, coefs, g.as_one_row(x), g.as_one_row(_first(g, hp, streams)))
        x = g.mul(_first(g, hp, streams), b["altup_correct_scale"])
        streams = g.add_to_streams(streams, others, g.as_one_row(per_layer.gated(g, hp, b, x, given[i])))
    logits = layers.logits(g, hp, w, _mean(g, hp, w, streams))
    return g.soft_cap(logits, hp.logit_cap) if hp.logit_cap else logits


def _spread(g: GraphBuilder, hp: Gemma3n, w: Weights, x: Node) -> Node:
    """x [T, n_embd] and its projections, all as large, as streams [T, n_stream, n_embd]."""
    projected = g.mul_mat_id(w["altup_proj"], x, g.numbers(hp.n_stream - 1))
    others = g.join_of_heads(g.as_large_as(projected, x, LEAST))
    joined = g.join_heads(g.as_one_row(x), g.as_one_row(others))
    return g.split_heads(g.join_of_heads(joined), hp.n_stream)


def _others(g: GraphBuilder, hp: Gemma3n) -> Node:
    """[T, n_stream, 1]: 1 for each stream but the first."""
    parts = constant(np.minimum(np.arange(hp.n_stream, dtype=np.float32), 1), "altup.others")
    return g.as_columns(g.gather(parts, g.numbers(hp.n_stream)))


def _predicted(g: GraphBuilder, hp: Gemma3n, streams: Node, coefs: Node) -> Node:
    """Each stream plus the sum of all of them, each times one of coefs [T, n_stream * n_stream]."""
    return g.add(streams, g.weighted_sum(streams, g.split_heads(coefs, hp.n_stream)))


def _first(g: GraphBuilder, hp: Gemma3n, streams: Node) -> Node:
    return g.columns(g.join_of_heads(streams), hp.n_embd)[0]


def _mean(g: GraphBuilder, hp: Gemma3n, w: Weights, streams: Node) -> Node:
    """The mean of the first of streams and projections of the others, all as large."""
    others = hp.n_stream - 1
    row, total = g.as_one_row(g.join_of_heads(streams)), _first(g, hp, streams)
    apart = g.split_heads(g.join_of_heads(g.slice_heads(row, hp.n_embd, others * hp.n_embd)), others)
    projected = g.mul_mat_id(w["altup_unembd_proj"], apart, g.numbers(others))
    for other in g.columns(g.join_of_heads(g.as_large_as(projected, total, LEAST)), *[hp.n_embd] * others):
        total = g.add(total, other)
    return layers.scaled(g, total, 1 / hp.n_stream)


def _coefs(g: GraphBuilder, hp: Gemma3n, b: Weights, name: str, x: Node) -> Node:
    """What a layer's weights `name` make of a router's view of x [T, n_embd]."""
    routed = g.mul_mat(b["altup_router"], g.rms_norm(x, b["altup_router_norm"], hp.eps))
    return g.mul_mat(b[name], g.soft_cap(layers.scaled(g, routed, 1 / hp.n_embd), 1.0))


def _ffn(g: GraphBuilder, b: Weights, h: Node, spread: float) -> Node:
    gate, up = layers.linear(g, b, "ffn_gate", h), layers.linear(g, b, "ffn_up", h)
    return layers.linear(g, b, "ffn_down", g.geglu(g.keep_largest(gate, spread) if spread > -math.inf else gate, up))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for streams of which layers see another than the first, or without a scale of the first."""
    config.only({"altup_active_idx": 0})
    config.only_flags({"altup_correct_scale": True})
    n, head = config.size("num_hidden_layers", LIMITS["block_count"]), LIMITS["attention.key_length"]
    head, said = config.size("head_dim", head, 256), config.values.get("num_kv_shared_layers") is not None
    keys: Keys = {f"attention.{part}_length": head for part in ("key", "value")} | {"rope.dimension_count": head}
    keys |= {KV: config.size("num_key_value_heads", LIMITS[KV], 2), FF: _widths(config, n)}
    keys["rope.freq_base"], keys["rope.freq_base_swa"] = gemma3.rope_bases(config)
    keys |= layer_window_keys(config, PERIOD, 512) | {PATTERN: windowed_layers(config, PERIOD)}
    keys |= {
        READERS: config.count("num_kv_shared_layers", n - 1) if said else min(15, n - 1), ACTIVE: 0,
        STREAMS: config.size("altup_num_inputs", MOST_STREAMS, 4), SPREADS: _kept(config, n),
        per_layer.LENGTH: config.size("hidden_size_per_layer_input", LIMITS["embedding_length"], 256),
        "final_logit_softcapping": config.real("final_logit_softcapping", 30.0),
    }
    return keys


def _widths(config: Config, n: int) -> list[int]:
    """The width of each layer's feed-forward, said for each or for all."""
    found = config.values.get("intermediate_size")
    each = found if isinstance(found, list) else [config.size("intermediate_size", LIMITS[FF], 16384)] * n
    if len(each) != n or not all(type(width) is int and 1 <= width <= LIMITS[FF] for width in each):
        raise config.error("intermediate_size", f"is {brief(found)}", f"{n} of 1 to {LIMITS[FF]}")
    return each


def _kept(config: Config, n: int) -> list[float]:
    """By layer, over how many standard deviations a gate keeps its values, of the part that it drops."""
    found = config.values.get("activation_sparsity_pattern")
    parts = [0.95 if i < 10 < n else 0.0 for i in range(n)] if found is None else found
    fits = isinstance(parts, list) and len(parts) == n
    if not fits or not all(isinstance(part, int | float) and 0 <= part < 1 for part in parts):
        raise config.error("activation_sparsity_pattern", f"is {brief(found)}", f"{n} numbers from 0 to less than 1")
    return [NormalDist().inv_cdf(part) if part else -math.inf for part in parts]


def remade(name: str, tensor: LazyTensor, hp: Gemma3n) -> LazyTensor:
    """The tokens that embeddings for layers lack, those of pictures and sounds, have the first one's."""
    lacking = hp.n_vocab - tensor.shape[0]
    if name != "per_layer_token_embd.weight" or lacking <= 0:
        return tensor
    shape = hp.n_vocab, *tensor.shape[1:]

    def load() -> QTensor:
        rows = tensor.load().data
        return QTensor(tensor.format, shape, np.concatenate([rows, np.repeat(rows[:1], lacking, axis=0)]), name)

    return LazyTensor(tensor.name, tensor.format, shape, load)


ARCH = Architecture(
    name="gemma3n",
    hparams=hparams,
    keys=frozenset({
        PATTERN, READERS, STREAMS, ACTIVE, SPREADS, per_layer.LENGTH, "rope.freq_base_swa", "final_logit_softcapping",
    }),
    tensors=tensors,
    build=build,
    classes={"Gemma3nForCausalLM": config_keys},
    names=names.POST_NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | per_layer.NAMES | {
        "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
        "laurel.post_laurel_norm": "laurel_post_norm", "altup.modality_router": "altup_router",
        "altup.router_norm": "altup_router_norm", "altup.prediction_coefs": "altup_predict_coef",
        "altup.correction_coefs": "altup_correct_coef", "altup.correct_output_scale": "altup_correct_scale.weight",
    },
    outer=names.OUTER | per_layer.OUTER | {
        "altup_projections.*.weight": "altup_proj.weight",
        "altup_unembed_projections.*.weight": "altup_unembd_proj.weight",
    },
    rows={LAUREL: "laurel_rank"},
    remade=remade,
    ropes=("default",),
    activation="gelu_pytorch_tanh",
    tied=True,
    writable=False,
)
