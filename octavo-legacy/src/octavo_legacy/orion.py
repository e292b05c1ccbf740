"""Orion: Llama with layer norms, and rope on halves of a head."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp) | layers.ffn_tensors(hp)
    block |= {f"{norm}.bias": vector(hp.n_embd) for norm in ("attn_norm", "ffn_norm")}
    return layers.model_tensors(hp, block) | {"output_norm.bias": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    return layers.layer_norm_graph(g, hp, w, layers.ffn)


def config_keys(config: Config) -> Keys:
    """What config.json has for RMS norms is the layer norms'. Raises ModelError for biases."""
    config.only_flags({"attention_bias": False})
    return layer_norm_keys(config, "rms_norm_eps")


ARCH = Architecture(
    name="orion",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"OrionForCausalLM": config_keys},
    names=names.LLAMA,
    ropes=("default", "linear"),
    writable=False,
)
