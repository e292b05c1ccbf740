"""Phi-3.5-MoE: layer norms, biases, longrope, and two experts that may both have all of a weight (arXiv 2409.12136)."""

from dataclasses import replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.dense import phi3
from octavo.models.shared import layers, names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys, expert_keys, rope_parameters, window_keys
from octavo.models.shared.decoder import Attention, CustomPart, Decoder, NormNames
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import MetadataReader
from octavo.models.shared.weights import Weights

JITTER = 0.01
"""Half of how far below the largest score another one may be, relative to it, to share with it."""


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    if hp.n_expert_used != 2:
        raise r.error("expert_used_count", f"{hp.n_expert_used} is out of range", "2")
    return replace(phi3.complete(r, hp), around_mean=True)  # by the key of RMS norms


def experts(g: GraphBuilder, hp: Hyperparams, b: Weights, h: Node, layer: int) -> Node:
    scores = g.mul_mat(b["ffn_gate_inp"], h)
    ids = g.top_k(scores, hp.n_expert_used)
    return layers.through_experts(g, b, h, ids, g.sparse_shares(scores, ids, 2 * JITTER))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a longrope that is stronger in contexts of one kind."""
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
    network=Decoder(
        mixer=Attention(output_bias=None), feed_forward=CustomPart(lambda hp, layer: layers.moe_tensors(hp), experts),
        norms=NormNames(bias=True), output_bias=True,
    ),
    sizes=Sizes(complete=complete),
    experts=True,
    classes=dict.fromkeys(("PhimoeForCausalLM", "PhiMoEForCausalLM"), config_keys),
    only={"router_jitter_noise": JITTER, "num_experts_per_tok": 2},
    names=names.NORMS | names.ATTENTION | names.moe("block_sparse_moe", "w1", "w3", "w2") | names.stacked("mlp"),
    outer=names.OUTER | {"lm_head.bias": "output.bias"},
    ropes=("default", "longrope"),
)
