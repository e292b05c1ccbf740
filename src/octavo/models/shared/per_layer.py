"""Embeddings for each layer: what it is given of a token besides what comes from the layer before."""

from __future__ import annotations

import math

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.weights import Tensors, Weights, matrix

LENGTH = "embedding_length_per_layer_input"
"""The field that says how many values a layer is given."""
OUTER = {
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
NAMES = {
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
}


def tensors(hp: Hyperparams, length: int) -> Tensors:
    """Outside of layers: a table, and a projection of the model's own embedding."""
    width = hp.n_layer * length
    table = {"per_layer_token_embd.weight": matrix(hp.n_vocab, width)} | layers.norms(length, "per_layer_proj_norm")
    return table | layers.products({"per_layer_model_proj": (width, hp.n_embd)})


def layer_tensors(hp: Hyperparams, length: int) -> Tensors:
    shapes = {"inp_gate": (length, hp.n_embd), "proj": (hp.n_embd, length)}
    return layers.products(shapes) | layers.norms(hp.n_embd, "post_norm")


def embeddings(g: GraphBuilder, hp: Hyperparams, w: Weights, x: Node, length: int) -> list[Node]:
    """What each layer is given of tokens, [T, length], whose scaled embeddings are x [T, n_embd]."""
    rows = layers.scaled(g, g.get_rows(w["per_layer_token_embd"], g.tokens), math.sqrt(length))
    projected = layers.scaled(g, layers.linear(g, w, "per_layer_model_proj", x), hp.n_embd**-0.5)
    projected = g.rms_norm(g.split_heads(projected, hp.n_layer), w["per_layer_proj_norm"], hp.eps)
    both = layers.scaled(g, g.add(g.join_of_heads(projected), rows), math.sqrt(0.5))
    return g.columns(both, *[length] * hp.n_layer)


def gated(g: GraphBuilder, hp: Hyperparams, b: Weights, x: Node, given: Node) -> Node:
    """What a layer adds to x [T, n_embd] for what it is `given`: normed(proj(gelu(gate(x)) * given))."""
    h = layers.linear(g, b, "proj", g.geglu(layers.linear(g, b, "inp_gate", x), given))
    return g.rms_norm(h, b["post_norm"], hp.eps)
