"""GroveMoE: Qwen3-MoE whose experts come in groups, each with a small expert that its tokens go through, too."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.moe import qwen3moe
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader, Hyperparams, read_shared
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

    n_ff_group: int
    group_size: int
    group_scale: float


def hparams(r: HyperparamReader) -> GroveMoe:
    """Raises ModelError for groups that do not divide the experts."""
    hp = read_shared(r, has_experts=True)
    width, size = r.whole(WIDTH, 0, LIMITS["expert_feed_forward_length"]), r.whole(SIZE, 0, hp.n_expert)
    if not width:
        raise r.error(WIDTH, "is 0 or missing", f"1 to {LIMITS['expert_feed_forward_length']}")
    if not size or hp.n_expert % size:
        raise r.error(SIZE, f"{size} does not divide {hp.n_expert} experts")
    return hp.extended(GroveMoe, n_ff_group=width, group_size=size, group_scale=r.real(SCALE, PUBLISHED[SCALE]))


def tensors(hp: GroveMoe) -> Tensors:
    groups = hp.n_expert // hp.group_size
    rows = with_scales(
        {f"ffn_{n}_chexps.weight": Expected((groups, hp.n_ff_group, hp.n_embd)) for n in PARTS[:2]}
        | {"ffn_down_chexps.weight": Expected((groups, hp.n_embd, hp.n_ff_group))}
    )
    attention = layers.attention_tensors(hp, qk_norm=True)
    return layers.model_tensors(hp, attention | layers.moe_tensors(hp) | rows)


def build(g: GraphBuilder, hp: GroveMoe, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        q, k, v = layers.normed_qkv(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps))
        h = g.attention(rope(q), rope(k), v, layer=i, scale=hp.attention_scale)
        x = g.add(x, layers.linear(g, b, "attn_output", h))
        x = g.add(x, feed_forward(g, hp, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


def feed_forward(g: GraphBuilder, hp: GroveMoe, b: Weights, h: Node) -> Node:
    """Each token through its experts, and through the expert of the group of each, by the same shares.

    A group that several of a token's experts are in counts once for each.
    """
    probabilities = g.soft_max(g.mul_mat(b["ffn_gate_inp"], h))
    ids = g.top_k(probabilities, hp.n_expert_used)
    shares = g.normalize(g.gather(probabilities, ids))
    y, groups = layers.through_experts(g, b, h, ids, shares), g.floor_divide(ids, hp.group_size)
    gate, up = (layers.experts(g, b, f"ffn_{n}_chexps", h, groups) for n in PARTS[:2])
    small = layers.experts(g, b, "ffn_down_chexps", g.swiglu(gate, up), groups)
    return g.add(y, g.weighted_sum(small, layers.scaled(g, shares, hp.group_scale)))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for windows, and for dense layers between those of experts."""
    config.only_flags({"use_sliding_window": False, "norm_topk_prob": True})
    return qwen3moe.expert_layer_keys(config) | PUBLISHED


ARCH = Architecture(
    name="grovemoe",
    hparams=hparams,
    keys=frozenset(PUBLISHED),
    tensors=tensors,
    build=build,
    classes={"GroveMoeForCausalLM": config_keys},
    names={**qwen3moe.ARCH.names, **{f"mlp.chunk_experts.*.{n}_proj": f"ffn_{n}_chexps" for n in PARTS}},
    ignored=(".expert_bias",),
    writable=False,
)
