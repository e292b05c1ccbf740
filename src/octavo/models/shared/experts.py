"""Experts as DeepSeek has them, and others since: chosen by scores, in some with biases, some for all tokens.

Scores are a softmax or sigmoids (arXiv 2412.19437). The first layers may have a dense feed-forward instead, and experts
may lie in groups, of which the best are chosen first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import ByLayer, CustomPart, FeedForward
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import EXPERT_WIDTH, LIMITS, MetadataReader, brief
from octavo.models.shared.weights import Tensors, Weights, vector

SOFTMAX, SIGMOID = 1, 2
N_DENSE, N_SHARED, GATE = "leading_dense_block_count", "expert_shared_count", "expert_gating_func"
GROUPS, USED_GROUPS = "expert_group_count", "expert_group_used_count"
SHARED_WIDTH = "expert_shared_feed_forward_length"
WEIGHT_SCALE, NORMALIZED = "expert_weights_scale", "expert_weights_norm"
KEYS = (N_DENSE, N_SHARED, GATE, GROUPS, USED_GROUPS, SHARED_WIDTH, WEIGHT_SCALE, NORMALIZED)


@dataclass(frozen=True, kw_only=True)
class Routed(Hyperparams):
    """How tokens find their experts.

    n_dense       layers before those of experts
    groups, used_groups  of experts, and those that a token chooses among
    gate          SOFTMAX or SIGMOID
    weight_scale  what the weights of a token's experts are multiplied by
    normalized    whether these weights sum to 1 before
    """

    n_dense: int = 0
    groups: int = 1
    used_groups: int = 1
    gate: int = SOFTMAX
    weight_scale: float = 1.0
    normalized: bool = False


def read(r: MetadataReader, hp: Hyperparams, gate: int, *, normalized: bool = False) -> dict[str, Any]:
    """The fields of `Routed`; `gate` and `normalized` where a file does not say.

    Raises ModelError naming the key that is wrong.
    """
    groups = max(1, r.count(GROUPS, LIMITS["expert_count"], 1))
    if hp.n_expert % groups:
        raise r.error(GROUPS, f"{groups} does not fit", f"a divisor of {hp.n_expert} experts")
    used = r.count(USED_GROUPS, LIMITS["expert_count"], groups)
    if groups > 1 and not 1 <= used <= groups:
        raise r.error(USED_GROUPS, f"{used} does not fit", f"1 to {groups}")
    found = r.count(GATE, LIMITS["expert_count"])
    if found not in (0, SOFTMAX, SIGMOID):
        raise r.error(GATE, f"{found} does not fit", f"{SOFTMAX} (softmax) or {SIGMOID} (sigmoid)")
    width = r.count(SHARED_WIDTH, LIMITS[SHARED_WIDTH])
    return {
        "n_dense": r.count(N_DENSE, LIMITS["block_count"]), "groups": groups, "used_groups": used,
        "n_ff_shared": width or r.count(N_SHARED, LIMITS["expert_count"]) * hp.n_ff_expert,
        "gate": found or gate, "weight_scale": r.positive(WEIGHT_SCALE) or 1.0,
        "normalized": r.flag(NORMALIZED, normalized),
    }


def sizes(gate: int, *, normalized: bool = False) -> Sizes:
    """Of an architecture that has nothing of its own beside `Routed`."""
    return Sizes(kind=Routed, complete=lambda r, hp: replace(hp, **read(r, hp, gate, normalized=normalized)))


def feed_forward_tensors(hp: Routed, layer: int) -> Tensors:
    """Of a layer, by its number. Sigmoids have biases, softmax may."""
    if layer < hp.n_dense:
        return FeedForward().tensors(hp, layer)
    shared = layers.shared_expert_tensors(hp, hp.n_ff_shared) if hp.n_ff_shared else {}
    return layers.moe_tensors(hp) | shared | {"exp_probs_b.bias": vector(hp.n_expert, optional=hp.gate == SOFTMAX)}


def feed_forward(g: GraphBuilder, hp: Routed, b: Weights, h: Node, layer: int) -> Node:
    """[T, n_embd] normed -> [T, n_embd], of a layer by its number."""
    if layer < hp.n_dense:
        return layers.ffn(g, b, h)
    y = layers.through_experts(g, b, h, *chosen(g, hp, b, h))
    return g.add(y, layers.ffn(g, b, h, "_shexp")) if hp.n_ff_shared else y


FEED_FORWARD = CustomPart(feed_forward_tensors, feed_forward)


def dense_tensors(hp: Routed, layer: int) -> Tensors:
    """Of a layer that guesses tokens, which is computed with a dense feed-forward; a file may have experts there."""
    others = {name: replace(want, optional=True) for name, want in feed_forward_tensors(hp, layer).items()}
    return others | FeedForward().tensors(hp, layer)


DENSE_NEXT = ByLayer(
    lambda hp, layer: layer < hp.n_layer, FEED_FORWARD,
    CustomPart(dense_tensors, lambda g, hp, b, h, layer: layers.ffn(g, b, h)),
)
"""Experts, and a dense feed-forward in layers that guess tokens."""


def chosen(g: GraphBuilder, hp: Routed, b: Weights, h: Node) -> tuple[Node, Node]:
    """The experts of each token of h [T, n_embd], and their weights: [T, k] each."""
    router = g.mul_mat(b["ffn_gate_inp"], h)
    scores = g.sigmoid(router) if hp.gate == SIGMOID else g.soft_max(router)
    bias = b.get("exp_probs_b.bias")
    choice = scores if bias is None else g.add(scores, bias)
    if hp.groups > 1:
        best = min(2 if hp.gate == SIGMOID else 1, hp.n_expert // hp.groups)
        choice = g.keep_groups(choice, hp.groups, hp.used_groups, best)
    ids = g.top_k(choice, hp.n_expert_used)
    weights = g.gather(scores, ids)
    return ids, layers.scaled(g, g.normalize(weights) if hp.normalized else weights, hp.weight_scale)


def config_keys(config: Config, gate: int, *, normalized: bool) -> Keys:
    """What config.json says with the words of DeepSeek V3; `normalized` where it does not say.

    Raises ModelError for scores that are not those of `gate`, and for dense layers behind those of experts.
    """
    config.only({"scoring_func": "sigmoid" if gate == SIGMOID else "softmax", "moe_layer_freq": 1})
    return {N_DENSE: _dense_layers(config), **choice_keys(config, gate, normalized=normalized)}


def choice_keys(config: Config, gate: int, *, normalized: bool) -> Keys:
    """How many experts there are, and how a token finds its own, by the same words."""
    experts = config.size("n_routed_experts", LIMITS["expert_count"])
    return {
        N_SHARED: config.count("n_shared_experts", experts), "expert_count": experts,
        "expert_used_count": config.size("num_experts_per_tok", experts),
        EXPERT_WIDTH: config.size("moe_intermediate_size", LIMITS[EXPERT_WIDTH]),
        GATE: gate, WEIGHT_SCALE: config.real("routed_scaling_factor", 1.0),
        NORMALIZED: config.flag("norm_topk_prob", normalized),
    }


def _dense_layers(config: Config) -> int:
    """How many of the first layers are dense, by a number or by a list of all layers."""
    n, kinds = config.n_layer, config.values.get("mlp_layer_types")
    if kinds is None:
        return config.count("first_k_dense_replace", n)
    dense = kinds.count("dense") if isinstance(kinds, list) else 0
    if kinds != ["dense"] * dense + ["sparse"] * (n - dense):
        raise config.error("mlp_layer_types", f"is {brief(kinds)}", f"dense, then sparse, for {n} layers")
    return dense


def group_keys(config: Config) -> Keys:
    """Groups of experts, and how many of them a token chooses among."""
    experts = config.size("n_routed_experts", LIMITS["expert_count"])
    groups = config.size("n_group", experts, 1)
    return {GROUPS: groups, USED_GROUPS: config.size("topk_group", groups, 1)}
