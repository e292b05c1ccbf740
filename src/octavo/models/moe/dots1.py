"""dots.llm1: norms of q and k, and DeepSeek's experts behind dense layers, chosen by sigmoids."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import HyperparamReader, read_shared
from octavo.models.shared.routed import SIGMOID, Routed
from octavo.models.shared.weights import Tensors, Weights
from octavo.models.shared.windows import window_of_some


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, has_experts=True)
    return hp.extended(Routed, **routed.read(r, hp, SIGMOID))


def tensors(hp: Routed) -> Tensors:
    attention = layers.attention_tensors(hp, qk_norm=True)
    return layers.model_tensors(hp, lambda i: attention | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    return routed.graph(g, hp, w, layers.normed_qkv)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers with a window."""
    if window_of_some(config.replaced({"use_sliding_window": True, **config.values})):
        raise config.error("sliding_window", "is that of some layers", "full_attention in all")
    return routed.config_keys(config, SIGMOID, normalized=False) | routed.group_keys(config)


ARCH = Architecture(
    name="dots1",
    hparams=hparams,
    keys=routed.KEYS,
    tensors=tensors,
    build=build,
    classes={"Dots1ForCausalLM": config_keys},
    names=names.LLAMA | names.QK_NORMS | names.ROUTED,
    writable=False,
)
