"""Gemma 3n, text: four streams of a token of which layers see the first (AltUp), and an embedding for each layer.

Beside attention there are two thin matrices (Laurel), and the first layers keep the largest values of their gates only.
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from octavo.formats import QTensor
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.dense import gemma3, gemma4
from octavo.models.dense.gemma4 import DIFFERS, LOGIT_CAP, READERS, Gemma4
from octavo.models.shared import layers, names, per_layer
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys, head_keys
from octavo.models.shared.decoder import GEGLU, SANDWICH_NORMS, Decoder
from octavo.models.shared.hparams import Key, local_base
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS, WINDOW, MetadataReader, brief
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix
from octavo.models.shared.windows import PATTERN, Windows, layer_window_keys, windowed_layers

PERIOD = 5
"""The last layer of each period has no window, where a file does not say which ones have."""
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

    n_stream: int = 4
    n_laurel: int = 0
    spreads: tuple[float, ...] = ()


def complete(r: MetadataReader, hp: Gemma3n) -> Gemma3n:
    kv = r.by_layer(KV_HEADS, default=hp.n_head)
    if (active := r.count(ACTIVE, MOST_STREAMS)) != 0:
        raise r.error(ACTIVE, f"is {active}", "0")
    if not hp.n_window:
        raise r.error(WINDOW, "is missing or 0", "tokens that layers with a window see")
    return replace(
        hp, dim_local=hp.head_dim, layer_kv=(kv,) * hp.n_layer, layer_ff=r.sizes(FF_WIDTH, hp.n_layer),
        n_reader=gemma4.readers_of(r, hp.windowed, max(0, hp.n_layer - OWN_CACHES)),
        n_laurel=r.shapes.get(LAUREL, (64,))[0], spreads=_spreads(r, hp.n_layer),
    )


def _spreads(r: MetadataReader, n_layer: int) -> tuple[float, ...]:
    values = tuple(map(float, r.metadata.get_floats(r.key(SPREADS))))
    if len(values) != n_layer or not all(value < math.inf for value in values):
        raise r.error(SPREADS, f"has {len(values)} values, or some that are not numbers", f"{n_layer}, one a layer")
    return values


class Gemma3nDecoder(Decoder):
    """Layers that see the first of several streams."""

    def tensors(self, hp: Gemma3n) -> Tensors:
        streams = Expected((hp.n_stream - 1, hp.n_embd, hp.n_embd))
        outer = {"altup_proj.weight": streams, "altup_unembd_proj.weight": streams}
        return super().tensors(hp) | outer | per_layer.tensors(hp, hp.n_each)

    def layer_tensors(self, hp: Gemma3n, layer: int) -> Tensors:
        n, laurel = hp.n_stream, {"laurel_l": (hp.n_laurel, hp.n_embd), "laurel_r": (hp.n_embd, hp.n_laurel)}
        block = super().layer_tensors(hp.at(layer), layer) | per_layer.layer_tensors(hp, hp.n_each)
        block |= layers.norms(hp.n_embd, "laurel_post_norm", "altup_router_norm", "altup_correct_scale")
        return block | layers.products(laurel) | {
            "altup_router.weight": matrix(n, hp.n_embd),
            "altup_predict_coef.weight": matrix(n * n, n), "altup_correct_coef.weight": matrix(n, n),
        }

    def build(self, g: GraphBuilder, hp: Gemma3n, w: Weights) -> Node:
        x = self.embedded(g, hp, w)
        given = per_layer.embeddings(g, hp, w, x, hp.n_each)
        streams, others = _spread(g, hp, w, x), _others(g, hp)
        for i in range(hp.n_layer):
            b = w.block(i)
            streams = _predicted(g, hp, streams, _coefs(g, hp, b, "altup_predict_coef", _first(g, hp, streams)))
            x = _first(g, hp, streams)
            h = g.rms_norm(x, b["attn_norm"], hp.eps)
            thin = layers.linear(g, b, "laurel_r", layers.linear(g, b, "laurel_l", h))
            thin = g.add(h, g.rms_norm(thin, b["laurel_post_norm"], hp.eps))
            x = g.add(x, g.rms_norm(gemma4.attention(g, hp, b, h, i), b["post_attention_norm"], hp.eps))
            x = layers.scaled(g, g.add(x, thin), math.sqrt(0.5))
            h = _ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps), hp.spreads[i])
            x = g.add(x, g.rms_norm(h, b["post_ffw_norm"], hp.eps))
            coefs = g.as_columns(_coefs(g, hp, b, "altup_correct_coef", x))
            streams = g.correct_streams(streams, coefs, g.as_one_row(x), g.as_one_row(_first(g, hp, streams)))
            x = g.mul(_first(g, hp, streams), b["altup_correct_scale"])
            streams = g.add_to_streams(streams, others, g.as_one_row(per_layer.gated(g, hp, b, x, given[i])))
        return self.output(g, hp, w, _mean(g, hp, w, streams))


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
    n, said = config.n_layer, config.values.get("num_kv_shared_layers")
    return head_keys(config, 256) | gemma3.rope_bases(config) | layer_window_keys(config, PERIOD, 512) | {
        KV_HEADS: config.size("num_key_value_heads", LIMITS[KV_HEADS], 2), FF_WIDTH: _widths(config, n),
        PATTERN: windowed_layers(config, PERIOD), ACTIVE: 0, SPREADS: _kept(config, n),
        READERS: min(15, n - 1) if said is None else config.count("num_kv_shared_layers", n - 1),
    }


def _widths(config: Config, n: int) -> list[int]:
    """The width of each layer's feed-forward, said for each or for all."""
    found = config.values.get("intermediate_size")
    each = found if isinstance(found, list) else [config.size("intermediate_size", LIMITS[FF_WIDTH], 16384)] * n
    if len(each) != n or not all(type(width) is int and 1 <= width <= LIMITS[FF_WIDTH] for width in each):
        raise config.error("intermediate_size", f"is {brief(found)}", f"{n} of 1 to {LIMITS[FF_WIDTH]}")
    return each


def _kept(config: Config, n: int) -> list[float]:
    """By layer, over how many standard deviations a gate keeps its values, of the part that it drops."""
    found = config.values.get("activation_sparsity_pattern")
    parts = [0.95 if i < 10 < n else 0.0 for i in range(n)] if found is None else found
    fits = isinstance(parts, list) and len(parts) == n
    if not fits or not all(isinstance(part, int | float) and 0 <= part < 1 for part in parts):
        raise config.error("activation_sparsity_pattern", f"is {brief(found)}", f"{n} numbers from 0 to less than 1")
    return [NormalDist().inv_cdf(part) if part else -math.inf for part in parts]


def converted(name: str, tensor: LazyTensor, hp: Gemma3n) -> LazyTensor:
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
    network=Gemma3nDecoder(mixer=gemma4.ATTENTION, feed_forward=GEGLU, norms=SANDWICH_NORMS, scaled_by_width=True),
    keys=(
        local_base(10000.0), ACTIVE, READERS, SPREADS,
        Key("n_stream", STREAMS, "altup_num_inputs", default=4, usual=4, least=2, limit=MOST_STREAMS),
        Key("n_each", per_layer.LENGTH, "hidden_size_per_layer_input", default=256, usual=256,
            limit=LIMITS["embedding_length"]),
        Key("logit_cap", LOGIT_CAP, LOGIT_CAP, default=30.0, usual=30.0, zero="value"),
    ),
    windows=Windows(PERIOD),
    sizes=Sizes(kind=Gemma3n, complete=complete, differs=DIFFERS),
    only={"altup_active_idx": 0, "altup_correct_scale": True},
    classes={"Gemma3nForCausalLM": config_keys},
    names=names.SANDWICH_NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | per_layer.NAMES | {
        "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
        "laurel.post_laurel_norm": "laurel_post_norm", "altup.modality_router": "altup_router",
        "altup.router_norm": "altup_router_norm", "altup.prediction_coefs": "altup_predict_coef",
        "altup.correction_coefs": "altup_correct_coef", "altup.correct_output_scale": "altup_correct_scale.weight",
    },
    outer=names.OUTER | per_layer.OUTER | {
        "altup_projections.*.weight": "altup_proj.weight",
        "altup_unembed_projections.*.weight": "altup_unembd_proj.weight",
    },
    modules=Modules(rows={LAUREL: "laurel_rank"}),
    layout=TensorLayout(converted=converted),
    ropes=("default",),
    activation="gelu_pytorch_tanh",
    tied=True,
)
