"""BERT and (XLM-)RoBERTa: encoders, whose tokens see all of a text; learned positions, norms behind each part, GELU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, layer_norm_keys
from octavo.models.shared.hparams import (
    LAYER_NORM_EPS,
    LIMITS,
    HyperparamReader,
    Hyperparams,
    read_shared,
    refuse_causal,
)
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector

TYPES = 2
"""Kinds of tokens at most: those of a first text, and of the second one that a reranker gets."""
NORMS = ("attn_output_norm", "layer_output_norm")
OUTER = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
    "classifier.dense.weight": "cls.weight",
    "classifier.dense.bias": "cls.bias",
    "classifier.out_proj.weight": "cls.output.weight",
    "classifier.out_proj.bias": "cls.output.bias",
}


ROWS = {"token_types.weight": "type_vocab_size"}


@dataclass(frozen=True, kw_only=True)
class Bert(Hyperparams):
    """
    n_types    kinds of tokens that there are vectors for
    two_texts  a second text's tokens are of the second kind, in a reranker; otherwise all are of the first
    """

    n_types: int
    two_texts: bool = False


def hparams(r: HyperparamReader) -> Bert:
    hp = read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)
    refuse_causal(r)
    n_types = read_types(r)
    two_texts = n_types > 1 and r.integer("pooling_type", 0) == RANK
    return hp.extended(Bert, n_types=n_types, two_texts=two_texts)


def read_types(r: HyperparamReader) -> int:
    """Kinds of tokens, which no key says."""
    return min(TYPES, r.shapes.get("token_types.weight", (TYPES,))[0])


def outer_tensors(hp: Bert, *, positions: bool) -> Tensors:
    """The tensors before the first layer; with `positions` there is a vector for each."""
    learned = {"position_embd.weight": matrix(hp.n_ctx_train, hp.n_embd)} if positions else {}
    return {
        "token_embd.weight": matrix(hp.n_vocab, hp.n_embd),
        "token_types.weight": Expected((hp.n_types, hp.n_embd), optional=True),
        **learned,
        **{f"token_embd_norm.{part}": vector(hp.n_embd) for part in ("weight", "bias")},
    }


def tensors(hp: Bert) -> Tensors:
    block = layers.attention_tensors(hp) | layers.ffn_tensors(hp)
    block = {n: want for n, want in block.items() if not n.startswith(("ffn_gate", "attn_norm", "ffn_norm"))}
    biases = {"attn_output": hp.n_embd, "ffn_up": hp.n_ff, "ffn_down": hp.n_embd}
    block |= {f"{name}.bias": vector(size, optional=True) for name, size in biases.items()}
    block |= {f"{name}.{part}": vector(hp.n_embd) for name in NORMS for part in ("weight", "bias")}
    head = {"cls.weight": Expected((hp.n_embd, hp.n_embd), optional=True), "cls.bias": vector(hp.n_embd, optional=True)}
    head |= layers.classifier_tensors(hp) | {"cls.output.bias": vector(hp.n_labels, optional=True)}
    return (
        outer_tensors(hp, positions=True)
        | head
        | {f"blk.{i}.{name}": want for i in range(hp.n_layer) for name, want in block.items()}
    )


def embedded(g: GraphBuilder, hp: Bert, w: Weights) -> Node:
    """The vectors that the first layer gets: of tokens, of their kind and of positions, normed: [T, n_embd]."""
    x = g.get_rows(w["token_embd"], g.tokens)
    kinds, positions = w.get("token_types"), w.get("position_embd")
    if kinds is not None and hp.two_texts:
        x = g.add(x, g.get_rows(kinds, g.kinds))
    elif kinds is not None:
        first = np.asarray(dequantize(kinds.tensor)[0], np.float32)
        x = g.add(x, constant(first, "token_type"))
    if positions is not None:
        x = g.add(x, g.get_rows(positions, g.positions))
    return layers.layer_norm(g, hp, w, "token_embd_norm", x)


def build(g: GraphBuilder, hp: Bert, w: Weights) -> Node:
    x = embedded(g, hp, w)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.qkv(g, hp, b, x)
        h = layers.linear(g, b, "attn_output", g.attention_of_all(q, k, v, i, hp.attention_scale))
        x = layers.layer_norm(g, hp, b, "attn_output_norm", g.add(x, h))
        h = layers.linear(g, b, "ffn_down", g.gelu_erf(layers.linear(g, b, "ffn_up", x)))
        x = layers.layer_norm(g, hp, b, "layer_output_norm", g.add(x, h))
    return g.last(x)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for positions that are not learned, for a decoder and for other kinds of tokens."""
    if (kind := config.values.get("position_embedding_type")) not in (None, "absolute"):
        raise config.error("position_embedding_type", f"is {brief(kind)}", "absolute")
    config.only_flags(dict.fromkeys(("is_decoder", "add_cross_attention"), False))
    require_types(config)
    return layer_norm_keys(config, "layer_norm_eps") | {"attention.causal": False, **NO_ROPE}


def roberta(config: Config) -> Keys:
    """The first position is the one after that of padding."""
    if (kind := config.values.get("model_type")) not in ROBERTA:
        raise config.error("model_type", f"is {brief(kind)}", " or ".join(ROBERTA))
    most, first = LIMITS["context_length"], before_positions(config)
    positions = config.size("max_position_embeddings", most)
    if positions <= first:
        raise config.error("max_position_embeddings", f"is {positions}", f"over {first}, as pad_token_id says")
    return config_keys(config) | {"context_length": positions - first}


def reranker(config: Config) -> Keys:
    """Raises ModelError for a classifier of more than one score."""
    require_one_label(config)
    usual = roberta if config.values.get("model_type") in ROBERTA else config_keys
    return usual(config) | {"pooling_type": RANK}


def require_one_label(config: Config) -> None:
    labels = config.values.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.values.get("num_labels", 2)
    if count != 1:
        raise config.error("id2label", f"is of {brief(count)} labels", "one, of a reranker")


def before_positions(config: Config) -> int:
    """Rows of RoBERTa's matrix of positions before that of the first token."""
    if config.values.get("model_type") not in ROBERTA:
        return 0
    found = config.values.get("pad_token_id", 1)
    if type(found) is not int or not 0 <= found < LIMITS["context_length"]:
        raise config.error("pad_token_id", f"is {brief(found)}", "0 or more")
    return found + 1


def require_types(config: Config) -> None:
    types = config.values.get("type_vocab_size")
    if types not in (None, *range(1, TYPES + 1)):
        raise config.error("type_vocab_size", f"is {brief(types)}", f"1 to {TYPES}")


RANK = 4
"""The number of GGUF's `pooling_type` that means a score of two texts."""
ROBERTA = ("roberta", "xlm-roberta")
"""Values of `model_type`."""
NO_ROPE: Keys = {"rope.freq_base": None, "rope.dimension_count": None}

ARCH = Architecture(
    name="bert",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, "attention.causal", "pooling_type"}),
    tensors=tensors,
    build=build,
    classes={
        "BertModel": config_keys, "BertForMaskedLM": config_keys, "RobertaModel": roberta,
        "RobertaForMaskedLM": roberta, "XLMRobertaModel": roberta, "XLMRobertaForMaskedLM": roberta,
        "BertForSequenceClassification": reranker, "RobertaForSequenceClassification": reranker,
        "XLMRobertaForSequenceClassification": reranker,
    },
    class_outer={
        "BertForSequenceClassification": {
            "pooler.dense.weight": "cls.weight", "pooler.dense.bias": "cls.bias",
            "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias",
        },
    },
    names={
        "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    },
    base="bert.",
    other_bases=("roberta.",),
    before_positions=before_positions,
    layer="encoder.layer",
    outer=OUTER,
    rows=ROWS,
    unused=("embeddings.position_ids", "pooler.", "cls."),
    activation="gelu",
    tied=True,
    encoder=True,
    writable=False,
)
