"""StarCoder 2: layer norms, biases everywhere, and a feed-forward of two matrices with GELU between."""

from __future__ import annotations

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, layer_norm_keys, window_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights, vector
from octavo.models.shared.windows import PATTERN, read_windowed


def hparams(r: HyperparamReader) -> Hyperparams:
    """Where there is a window all layers have it."""
    hp = read_shared(r, has_experts=False, eps=LAYER_NORM_EPS)
    return replace(hp, windowed=read_windowed(r, hp, 0))


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp, bias=True) | layers.plain_ffn_tensors(hp)
    block |= {f"{n}.bias": vector(hp.n_embd) for n in ("attn_norm", "attn_output", "ffn_norm", "ffn_down")}
    block["ffn_up.bias"] = vector(hp.n_ff)
    return layers.model_tensors(hp, block) | {"output_norm.bias": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    return layers.layer_norm_graph(g, hp, w, lambda g, b, h: layers.plain_ffn(g, b, h, g.gelu))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a model without biases."""
    config.only_flags({"use_bias": True})
    return layer_norm_keys(config, "norm_epsilon") | window_keys(config, 0)


ARCH = Architecture(
    name="starcoder2",
    hparams=hparams,
    keys=frozenset({PATTERN, LAYER_NORM_EPS}),
    tensors=tensors,
    build=build,
    classes={"Starcoder2ForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    activation="gelu_pytorch_tanh",
    tied=True,
    writable=False,
)
