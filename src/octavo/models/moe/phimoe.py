"""Phi-3.5-MoE: layer norms, biases, longrope, and two experts that may both have all of a share (arXiv 2409.12136)."""

from __future__ import annotations

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import phi3
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys, rope_parameters, window_keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared
from octavo.models.shared.weights import BIAS, Tensors, Weights, vector

JITTER = 0.01
"""Half of how far below the largest score another one may be, relative to it, to share with it."""
NORMS = ("attn_norm", "ffn_norm")


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = read_shared(r, has_experts=True)
    if hp.n_expert_used != 2:
        raise r.error("expert_used_count", f"{hp.n_expert_used} is out of range", "2")
    return phi3.windowed(phi3.with_longrope(r, hp))


def tensors(hp: Hyperparams) -> Tensors:
    block = layers.attention_tensors(hp, output_bias=True) | layers.moe_tensors(hp)
    block |= {f"{name}{BIAS}": vector(hp.n_embd) for name in NORMS}
    return layers.model_tensors(hp, block, output_bias=True) | {f"output_norm{BIAS}": vector(hp.n_embd)}


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    return layers.layer_norm_graph(g, hp, w, lambda g, b, h: _through_experts(g, hp, b, h))


def _through_experts(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node) -> Node:
    scores = g.mul_mat(b["ffn_gate_inp"], h)
    ids = g.top_k(scores, hp.n_expert_used)
    return layers.through_experts(g, b, h, ids, g.sparse_shares(scores, ids, 2 * JITTER))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for another jitter, and for a longrope that is stronger in contexts of one kind."""
    config.only({"router_jitter_noise": JITTER, "num_experts_per_tok": 2})
    keys = window_keys(config, 0) | expert_keys(config, "num_local_experts")
    found = rope_parameters(config)
    if found.get("long_mscale") is not None:
        strength = config.real("long_mscale", of=found)
        if found.get("short_mscale") != strength:
            raise config.error("short_mscale", f"is {found.get('short_mscale')}", f"long_mscale's {strength:g}")
        keys["rope.scaling.attn_factor"] = strength
    return keys


ARCH = Architecture(
    name="phimoe",
    hparams=hparams,
    tensors=tensors,
    build=build,
    classes={"PhimoeForCausalLM": config_keys, "PhiMoEForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.moe("block_sparse_moe", "w1", "w3", "w2") | names.stacked("mlp"),
    outer=names.OUTER | {"lm_head.bias": "output.bias"},
    ropes=("default", "longrope"),
    writable=False,
)
