"""Jina BERT 2: an encoder whose attention falls with the distance (ALiBi) instead of positions, and GeGLU."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.encoder import bert
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, HyperparamReader
from octavo.models.shared.weights import Tensors, Weights, matrix, vector, with_scales

MOST = "attention.max_alibi_bias"
USUAL = 8.0
"""What slopes are made of where a file does not say."""


@dataclass(frozen=True, kw_only=True)
class JinaBert(bert.Bert):
    """
    alibi   what the slopes of heads are made of
    gate    the feed-forward's gate is a matrix of its own, not the first half of `ffn_up`
    """

    alibi: float
    gate: bool


def hparams(r: HyperparamReader) -> JinaBert:
    hp = bert.hparams(r)
    return hp.extended(JinaBert, alibi=r.positive(MOST) or USUAL, gate="blk.0.ffn_gate.weight" in r.shapes)


def tensors(hp: JinaBert) -> Tensors:
    block = layers.attention_tensors(hp)
    del block["attn_norm.weight"]
    feed_forward = {"ffn_down.weight": matrix(hp.n_embd, hp.n_ff)}
    up = {"ffn_gate.weight": hp.n_ff, "ffn_up.weight": hp.n_ff} if hp.gate else {"ffn_up.weight": 2 * hp.n_ff}
    block |= with_scales(feed_forward | {name: matrix(rows, hp.n_embd) for name, rows in up.items()})
    block |= {f"{name}.bias": vector(hp.n_embd) for name in ("attn_output", "ffn_down")}
    block |= {f"{name}.{part}": vector(hp.n_embd) for name in bert.NORMS for part in ("weight", "bias")}
    return bert.outer_tensors(hp, positions=False) | {
        f"blk.{i}.{name}": want for i in range(hp.n_layer) for name, want in block.items()
    }


def build(g: GraphBuilder, hp: JinaBert, w: Weights) -> Node:
    x = bert.embedded(g, hp, w)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, x)
        h = g.attention_of_all(q, k, v, i, hp.attention_scale, alibi=hp.alibi)
        x = layers.layer_norm(g, hp, b, "attn_output_norm", g.add(x, layers.linear(g, b, "attn_output", h)))
        up = layers.linear(g, b, "ffn_up", x)
        gate, up = (layers.linear(g, b, "ffn_gate", x), up) if hp.gate else g.columns(up, hp.n_ff, hp.n_ff)
        h = layers.linear(g, b, "ffn_down", g.mul(g.gelu_erf(gate), up))
        x = layers.layer_norm(g, hp, b, "layer_output_norm", g.add(x, h))
    return g.last(x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for learned positions, for other feed-forwards and for a decoder."""
    for key, usual in (("position_embedding_type", "alibi"), ("feed_forward_type", "geglu")):
        if (found := config.values.get(key, usual)) != usual:
            raise config.error(key, f"is {brief(found)}", usual)
    config.only_flags({"is_decoder": False})
    bert.require_types(config)
    return layer_norm_keys(config, "layer_norm_eps") | {"attention.causal": False, **bert.NO_ROPE}


ARCH = Architecture(
    name="jina-bert-v2",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, MOST, "attention.causal", "pooling_type"}),
    tensors=tensors,
    build=build,
    classes={"JinaBertModel": config_keys, "JinaBertForMaskedLM": config_keys},
    names={name: part for name, part in bert.ARCH.names.items() if name.startswith("attention.")} | {
        "mlp.gated_layers": "ffn_up", "mlp.wo": "ffn_down", "mlp.layernorm": "layer_output_norm",
    },
    base="bert.",
    layer="encoder.layer",
    rows=bert.ROWS,
    outer={name: gguf for name, gguf in bert.OUTER.items() if "embeddings." in name and "position" not in name},
    unused=("embeddings.position_ids", "pooler.", "cls."),
    activation="gelu",
    tied=True,
    encoder=True,
    writable=False,
)
