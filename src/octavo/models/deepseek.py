"""DeepSeek's first mixtures (DeepSeekMoE 16B): Llama, whose experts are chosen by shares, some for all tokens."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import layers, names, routed
from octavo.models.architecture import Architecture
from octavo.models.config import Config, Keys
from octavo.models.hparams import HyperparamReader, read_shared
from octavo.models.routed import SOFTMAX, Routed
from octavo.models.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, interleaved=True, has_experts=True)
    return hp.extended(Routed, **routed.read(r, hp, SOFTMAX))


def tensors(hp: Routed) -> Tensors:
    attention = layers.attention_tensors(hp, output_bias=True)
    return layers.model_tensors(hp, lambda i: attention | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    return routed.graph(g, hp, w, layers.qkv)


def config_keys(config: Config) -> Keys:
    return routed.config_keys(config, SOFTMAX, normalized=False)


ARCH = Architecture(
    name="deepseek",
    hparams=hparams,
    keys=routed.KEYS,
    tensors=tensors,
    build=build,
    classes={"DeepseekForCausalLM": config_keys},
    names=names.LLAMA | names.ROUTED,
    ropes=("default", "linear"),
    writable=False,
)
