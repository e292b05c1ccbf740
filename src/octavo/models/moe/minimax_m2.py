"""MiniMax M2: q and k normed as whole rows, rope on a part of each head, experts chosen by sigmoids and biases."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, brief, expert_keys, rotary_keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.shared.routed import SIGMOID, Routed
from octavo.models.shared.weights import Tensors, Weights


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, has_experts=True)
    return hp.extended(Routed, **routed.read(r, hp, SIGMOID, normalized=True))


def tensors(hp: Routed) -> Tensors:
    attention = layers.attention_tensors(hp) | layers.row_norm_tensors(hp)
    return layers.model_tensors(hp, lambda i: attention | routed.feed_forward_tensors(hp, i))


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    return routed.graph(g, hp, w, layers.qkv_of_rows)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for other scores, norms or kinds of attention, and for experts that all tokens go through."""
    config.only({
        "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
    })
    kinds = config.values.get("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise config.error("attn_type_list", f"is {brief(kinds)}", "1 for each layer")
    width, turned = config.size("intermediate_size", LIMITS["expert_feed_forward_length"]), "rotary_dim"
    own = config.values.get(turned) is not None
    dims = {"rope.dimension_count": config.size(turned, LIMITS["attention.key_length"])} if own else {}
    return rotary_keys(config, 1.0) | dims | expert_keys(config, "num_local_experts") | {
        "expert_feed_forward_length": width, routed.GATE: SIGMOID,
    }


ARCH = Architecture(
    name="minimax-m2",
    hparams=hparams,
    keys=routed.KEYS,
    tensors=tensors,
    build=build,
    classes={"MiniMaxM2ForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.moe("block_sparse_moe", "w1", "w3", "w2") | {
        "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias", **names.stacked("mlp"),
    },
    writable=False,
)
