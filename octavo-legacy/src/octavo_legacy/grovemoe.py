"""GroveMoE: Qwen3-MoE whose experts come in groups, each with a small expert that its tokens go through, too."""

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.moe import qwen2moe, qwen3moe
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Modules, Sizes
from octavo.models.shared.decoder import Attention, CustomPart, Decoder
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import EXPERT_WIDTH, LIMITS, MetadataReader
from octavo.models.shared.weights import Expected, Tensors, Weights, with_scales

WIDTH, SIZE, SCALE = "expert_chunk_feed_forward_length", "experts_per_group", "expert_group_scale"
PUBLISHED = {WIDTH: 128, SIZE: 2, SCALE: 0.05}
"""Of the published models: their code has these numbers, config.json does not."""
PARTS = ("gate", "up", "down")


@dataclass(frozen=True, kw_only=True)
class GroveMoe(Hyperparams):
    """
    n_ff_group   width of the expert of a group
    group_size   experts in a group
    group_scale  what the outputs of groups' experts are multiplied by
    """

    n_ff_group: int = 0
    group_size: int = 0
    group_scale: float = 0.0


def complete(r: MetadataReader, hp: GroveMoe) -> GroveMoe:
    if not hp.group_size or hp.n_expert % hp.group_size:
        raise r.error(SIZE, f"{hp.group_size} does not divide {hp.n_expert} experts")
    return hp


def feed_forward_tensors(hp: GroveMoe, layer: int) -> Tensors:
    groups = hp.n_expert // hp.group_size
    return layers.moe_tensors(hp) | with_scales(
        {f"ffn_{n}_chexps.weight": Expected((groups, hp.n_ff_group, hp.n_embd)) for n in PARTS[:2]}
        | {"ffn_down_chexps.weight": Expected((groups, hp.n_embd, hp.n_ff_group))}
    )


def feed_forward(g: GraphBuilder, hp: GroveMoe, b: Weights, h: Node, layer: int) -> Node:
    """Each token through its experts, and through the expert of the group of each, by the same weights.

    A group that several of a token's experts are in counts once for each.
    """
    probabilities = g.soft_max(g.mul_mat(b["ffn_gate_inp"], h))
    ids = g.top_k(probabilities, hp.n_expert_used)
    weights = g.normalize(g.gather(probabilities, ids))
    y, groups = layers.through_experts(g, b, h, ids, weights), g.floor_divide(ids, hp.group_size)
    gate, up = (layers.experts(g, b, f"ffn_{n}_chexps", h, groups) for n in PARTS[:2])
    small = layers.experts(g, b, "ffn_down_chexps", g.swiglu(gate, up), groups)
    return g.add(y, g.weighted_sum(small, layers.scaled(g, weights, hp.group_scale)))


ARCH = Architecture(
    name="grovemoe",
    network=Decoder(mixer=Attention(qk_norm="heads"), feed_forward=CustomPart(feed_forward_tensors, feed_forward)),
    keys=(
        Key("n_ff_group", WIDTH, default=0, least=1, limit=LIMITS[EXPERT_WIDTH]),
        Key("group_size", SIZE, default=0, limit=LIMITS["expert_count"]),
        Key("group_scale", SCALE, default=PUBLISHED[SCALE], zero="refused"),
    ),
    sizes=Sizes(kind=GroveMoe, complete=complete),
    experts=True,
    only={"use_sliding_window": False, "norm_topk_prob": True},
    classes={"GroveMoeForCausalLM": lambda config: qwen2moe.expert_layer_keys(config) | PUBLISHED},
    names={**qwen3moe.ARCH.names, **{f"mlp.chunk_experts.*.{n}_proj": f"ffn_{n}_chexps" for n in PARTS}},
    modules=Modules(ignored=(".expert_bias",)),
)
