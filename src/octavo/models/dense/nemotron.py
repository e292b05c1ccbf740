"""Nemotron 4 and Minitron: layer norms, rope on a part of each head, and a squared ReLU between two matrices."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys, rotary_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp, output_bias=True) | layers.plain_ffn_tensors(hp, bias=True)
    block |= {f"{norm}.bias": vector(hp.n_embd) for norm in ("attn_norm", "ffn_norm")}
    return layers.model_tensors(hp, block) | {"output_norm.bias": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    return layers.layer_norm_graph(g, hp, w, lambda g, b, h: layers.plain_ffn(g, b, h, g.relu_squared))


def config_keys(config: Config) -> Keys:
    return layer_norm_keys(config, "norm_eps") | rotary_keys(config, default=0.5)


ARCH = Architecture(
    name="nemotron",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"NemotronForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    ropes=("default", "linear"),
    activation="relu2",
    norm_shift=1.0,
    writable=False,
)
