"""Ling and Ring, first models: Llama with DeepSeek's experts; q, k and v in one matrix of a checkpoint."""

from __future__ import annotations

from functools import partial

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import HyperparamReader, read_shared
from octavo.models.shared.remaking import parted_qkv
from octavo.models.shared.routed import SOFTMAX, Routed
from octavo.models.shared.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, interleaved=True, has_experts=True)
    found = hp.extended(Routed, **routed.read(r, hp, SOFTMAX))
    if found.n_dense:
        raise r.error(routed.N_DENSE, f"is {found.n_dense}", "0, as all layers have experts")
    return found


def tensors(hp: Routed) -> Tensors:
    attention = layers.attention_tensors(hp, output_bias=True)
    return layers.model_tensors(hp, lambda i: attention | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    return routed.graph(g, hp, w, layers.qkv)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases."""
    config.only_flags({"use_qkv_bias": False, "use_bias": False, "norm_softmax": False})
    return routed.config_keys(config, SOFTMAX, normalized=True)


ARCH = Architecture(
    name="bailingmoe",
    hparams=hparams,
    keys=routed.KEYS,
    tensors=tensors,
    build=build,
    classes={"BailingMoeForCausalLM": config_keys},
    names=names.NORMS | names.ROUTED | {
        "attention.query_key_value": "attn_q attn_k attn_v", "attention.dense": "attn_output",
    },
    outer=names.OUTER | {"word_embeddings.weight": "token_embd.weight"},
    key_aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
    remade=partial(parted_qkv, turned=True),
    unit_output=lambda config: 0 if config.flag("norm_head", False) else None,
    reordered=False,
    writable=False,
)
