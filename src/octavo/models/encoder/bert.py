"""BERT and (XLM-)RoBERTa: encoders, whose tokens see all of a text; learned positions, norms behind each part, GELU."""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from octavo.formats import dequantize
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import FeedForward, FullAttention, NormNames, TransformerEncoder
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import LIMITS, MetadataReader, brief
from octavo.models.shared.weights import Expected, Tensors, Weights, vector

TYPES = 2
"""Kinds of tokens at most: those of a first text, and of the second one that a reranker gets."""
NORMS = NormNames(
    mixer="", feed_forward="", after_mixer="attn_output_norm", after_feed_forward="layer_output_norm", bias=True,
    of_sum=True,
)
POOLING = "pooling_type"
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

    n_types: int = TYPES
    two_texts: bool = False


B = TypeVar("B", bound=Bert)


def complete(r: MetadataReader, hp: B) -> B:
    n_types = kinds_of_tokens(r)
    return replace(hp, n_types=n_types, two_texts=n_types > 1 and r.integer(POOLING, 0) == RANK)


def kinds_of_tokens(r: MetadataReader) -> int:
    """As the tensor of their vectors has; no key says it."""
    return min(TYPES, r.shapes.get("token_types.weight", (TYPES,))[0])


@dataclass(frozen=True, kw_only=True)
class BertEncoder(TransformerEncoder):
    """What the first layer is given is made of tokens and their kinds; with `head` a file may have a reranker's."""

    norms: NormNames = NORMS
    embedding_norm: bool = True
    freq_factors: bool = False
    output_norm: str = ""
    head: bool = False

    def tensors(self, hp: Bert) -> Tensors:
        kinds = {"token_types.weight": Expected((hp.n_types, hp.n_embd), optional=True)}
        return super().tensors(hp) | kinds | (head_tensors(hp) if self.head else {})

    def embedded(self, g: GraphBuilder, hp: Bert, w: Weights) -> Node:
        x = g.get_rows(w["token_embd"], g.tokens)
        kinds = w.get("token_types")
        if kinds is not None and hp.two_texts:
            x = g.add(x, g.get_rows(kinds, g.kinds))
        elif kinds is not None:
            first = np.asarray(dequantize(kinds.tensor)[0], np.float32)
            x = g.add(x, constant(first, "token_type"))
        if self.positions:
            x = g.add(x, g.get_rows(w["position_embd"], g.positions))
        return layers.norm(g, hp, w, "token_embd_norm", x)


def head_tensors(hp: Hyperparams) -> Tensors:
    """What a reranker's scores are computed with."""
    head = {"cls.weight": Expected((hp.n_embd, hp.n_embd), optional=True), "cls.bias": vector(hp.n_embd, optional=True)}
    return head | layers.classifier_tensors(hp) | {"cls.output.bias": vector(hp.n_labels, optional=True)}


def config_keys(config: Config) -> Keys:
    """Raises ModelError for other kinds of tokens."""
    require_types(config)
    return NO_ROPE


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
    return usual(config) | {POOLING: RANK}


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
    network=BertEncoder(
        mixer=FullAttention(output_bias=None, rope="none"),
        feed_forward=FeedForward(activation="gelu_erf", plain=True, bias=None), positions=True, head=True,
    ),
    keys=(POOLING,),
    sizes=Sizes(kind=Bert, complete=complete),
    layer_norms="layer_norm_eps",
    only={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    classes={
        "BertModel": config_keys, "BertForMaskedLM": config_keys, "RobertaModel": roberta,
        "RobertaForMaskedLM": roberta, "XLMRobertaModel": roberta, "XLMRobertaForMaskedLM": roberta,
        "BertForSequenceClassification": reranker, "RobertaForSequenceClassification": reranker,
        "XLMRobertaForSequenceClassification": reranker,
    },
    names={
        "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
    },
    base="bert.",
    layer="encoder.layer",
    outer=OUTER,
    modules=Modules(other_bases=("roberta.",), rows=ROWS, outer_by_class={
        "BertForSequenceClassification": {
            "pooler.dense.weight": "cls.weight", "pooler.dense.bias": "cls.bias",
            "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias",
        },
    }),
    layout=TensorLayout(before_positions=before_positions),
    unused=("embeddings.position_ids", "pooler.", "cls."),
    activation="gelu",
    tied=True,
)
