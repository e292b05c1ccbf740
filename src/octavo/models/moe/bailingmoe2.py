"""Ling 2 and Ring 2: q, k and v in one matrix, norms of q and k, rope on half of each head, DeepSeek's experts."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers, names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, nextn_keys, rotary_keys
from octavo.models.shared.hparams import NEXTN, HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.routed import SIGMOID, Routed
from octavo.models.shared.weights import Tensors, Weights, vector


def hparams(r: HyperparamReader) -> Routed:
    hp = read_shared(r, has_experts=True)
    return hp.extended(Routed, **routed.read(r, hp, SIGMOID, normalized=True))


def tensors(hp: Routed) -> Tensors:
    block = layers.joined_qkv_tensors(hp) | {f"attn_{n}_norm.weight": vector(hp.head_dim) for n in "qk"}

    def in_layer(i: int) -> Tensors:
        last = {"layer_output_norm.weight": vector(hp.n_embd)} if i >= hp.n_layer else {}
        return block | routed.feed_forward_tensors(hp, i) | last

    return layers.model_tensors(hp, in_layer)


def build(g: GraphBuilder, hp: Routed, w: Weights) -> Node:
    def qkv(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node) -> tuple[Node, Node, Node]:
        q, k, v = layers.joined_qkv(g, hp, b, h)
        return g.rms_norm(q, b["attn_q_norm"], hp.eps), g.rms_norm(k, b["attn_k_norm"], hp.eps), v

    return routed.graph(g, hp, w, qkv)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for biases, for norms that are missing, and for an expert for all of another width."""
    config.only_flags({
        "use_qkv_bias": False, "use_bias": False, "use_qk_norm": True, "norm_head": False, "use_rmsnorm": True,
        "moe_router_enable_expert_bias": True,
    })
    keys = routed.config_keys(config, SIGMOID, normalized=True) | routed.group_keys(config)
    config.only({"moe_shared_expert_intermediate_size": keys[routed.N_SHARED] * keys["expert_feed_forward_length"]})
    return keys | rotary_keys(config, default=0.5) | nextn_keys(config)


ARCH = Architecture(
    name="bailingmoe2",
    hparams=hparams,
    keys=routed.KEYS | {NEXTN},
    tensors=tensors,
    build=build,
    classes={"BailingMoeV2ForCausalLM": config_keys},
    names=names.NORMS | names.FFN | names.ROUTED | names.NEXTN | {
        "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
        "attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm",
        "mlp.gate.expert_bias": "exp_probs_b.bias", "final_layernorm": "layer_output_norm",
    },
    outer={
        "word_embeddings.weight": "token_embd.weight", "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    },
    key_aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts",
           "score_function": "scoring_func"},
    ropes=("default", "linear", "yarn"),
    writable=False,
)
