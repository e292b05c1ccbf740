"""DeepSeek V2 and V3 (R1): latent attention, and experts chosen by softmax (V2) or by sigmoid with biases (V3).

They are chosen among the best groups, if there are groups; some experts all tokens go through.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import latent, layers, names, unsplit
from octavo.models.architecture import Architecture
from octavo.models.config import Config, Keys, brief, rope_parameters
from octavo.models.hparams import LIMITS, HyperparamReader, read_shared
from octavo.models.rope import LOG_MULTIPLIER
from octavo.models.weights import Tensors, Weights, vector

SOFTMAX, SIGMOID = 1, 2
SIZES = latent.SIZES | {
    "n_dense": "leading_dense_block_count", "n_shared": "expert_shared_count",
    "groups": "expert_group_count", "used_groups": "expert_group_used_count", "gate": "expert_gating_func",
}  # fmt: skip
"""Fields of whole numbers, by the names that they have here."""


@dataclass(frozen=True, kw_only=True)
class Deepseek2(latent.Latent):
    """Layers before those of experts, experts for all tokens, groups, how experts are chosen, what shares are times."""

    n_dense: int
    n_shared: int
    groups: int
    used_groups: int
    gate: int
    share_scale: float
    normalized: bool


def hparams(r: HyperparamReader) -> Deepseek2:
    hp = read_shared(r, interleaved=True, has_experts=True, equal_lengths=False)
    sizes = {name: r.whole(field, 0, LIMITS["embedding_length"]) for name, field in SIZES.items()}
    groups = max(1, sizes["groups"])
    checks = latent.checks(hp, sizes) | {
        "gate": (sizes["gate"] in (0, SOFTMAX, SIGMOID), "1 (softmax) or 2 (sigmoid)"),
        "groups": (hp.n_expert % groups == 0, f"a divisor of {hp.n_expert} experts"),
        "used_groups": (groups == 1 or 1 <= sizes["used_groups"] <= groups, f"1 to {groups}"),
    }
    for name, (fits, allowed) in checks.items():
        if not fits:
            raise r.error(SIZES[name], f"{sizes[name]} does not fit", allowed)
    # The key has 0.1 times what takes yarn's strength from turned values and gives it to scores.
    stretch = math.log(max(1.0, hp.rope.factor))
    turned = 1 + 0.1 * stretch if r.has(LOG_MULTIPLIER) else 1.0
    strength = 1 + (r.positive(LOG_MULTIPLIER) or 0.0) * stretch
    rope = replace(hp.rope, attention_factor=hp.rope.attention_factor / turned)
    own = {
        "query_scale": strength**2 / math.sqrt(sizes["key"]),
        "share_scale": r.positive("expert_weights_scale") or 1.0,
    }
    normalized = r.metadata.get_bool(r.key("expert_weights_norm"), default=False)
    return hp.extended(Deepseek2, **sizes, **own, rope=rope, normalized=normalized)


def tensors(hp: Deepseek2) -> Tensors:
    attention, moe = latent.attention_tensors(hp), layers.moe_tensors(hp)
    if hp.n_shared:
        moe |= layers.shared_expert_tensors(hp, hp.n_shared * hp.n_ff_expert)
    if hp.gate == SIGMOID:
        moe["exp_probs_b.bias"] = vector(hp.n_expert)
    return layers.model_tensors(hp, lambda i: attention | (layers.ffn_tensors(hp) if i < hp.n_dense else moe))


def build(g: GraphBuilder, hp: Deepseek2, w: Weights) -> Node:
    rope = layers.rotary(g, hp.rope, w)
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        x = g.add(x, latent.attend(g, hp, b, g.rms_norm(x, b["attn_norm"], hp.eps), i, rope))
        h = g.rms_norm(x, b["ffn_norm"], hp.eps)
        x = g.add(x, layers.ffn(g, b, h) if i < hp.n_dense else _moe(g, hp, b, h))
    return layers.logits(g, hp, w, x)


def _moe(g: GraphBuilder, hp: Deepseek2, b: Weights, h: Node) -> Node:
    router = g.mul_mat(b["ffn_gate_inp"], h)
    scores = g.sigmoid(router) if hp.gate == SIGMOID else g.soft_max(router)
    choice = g.add(scores, b["exp_probs_b.bias"]) if hp.gate == SIGMOID else scores
    if hp.groups > 1:
        best = min(2 if hp.gate == SIGMOID else 1, hp.n_expert // hp.groups)
        choice = g.keep_groups(choice, hp.groups, hp.used_groups, best)
    ids = g.top_k(choice, hp.n_expert_used)
    shares = g.gather(scores, ids)
    shares = layers.scaled(g, g.normalize(shares) if hp.normalized else shares, hp.share_scale)
    y = layers.through_experts(g, b, h, ids, shares)
    return g.add(y, layers.ffn(g, b, h, "_shexp")) if hp.n_shared else y


def v2(config: Config) -> Keys:
    """Raises ModelError for other ways to choose experts, and for normalized shares."""
    if config.flag("norm_topk_prob", False):
        raise config.error("norm_topk_prob", "is true", "false")
    method = config.values.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.error("topk_method", f"is {brief(method)}", "greedy or group_limited_greedy")
    groups = _groups(config) if method == "group_limited_greedy" else {}
    return _config_keys(config, "softmax") | groups | {"expert_gating_func": SOFTMAX}


def v3(config: Config) -> Keys:
    if not config.flag("rope_interleave", True):
        raise config.error("rope_interleave", "is false", "true")
    keys = _config_keys(config, "sigmoid") | _groups(config) | {"expert_gating_func": SIGMOID}
    return keys | {"expert_weights_norm": config.flag("norm_topk_prob", True)}


def _groups(config: Config) -> Keys:
    experts = config.size("n_routed_experts", LIMITS["expert_count"])
    groups = config.size("n_group", experts, 1)
    return {SIZES["groups"]: groups, SIZES["used_groups"]: config.size("topk_group", groups, 1)}


def _config_keys(config: Config, scoring: str) -> Keys:
    """Raises ModelError for biases of attention, experts between dense layers, and yarn that GGUF has no words for."""
    if config.flag("attention_bias", False):
        raise config.error("attention_bias", "is true", "false")
    for word, usual in (("scoring_func", scoring), ("moe_layer_freq", 1)):
        if (value := config.values.get(word)) not in (None, usual):
            raise config.error(word, f"is {brief(value)}", str(usual))
    n_layer = config.size("num_hidden_layers", LIMITS["block_count"])
    experts = config.size("n_routed_experts", LIMITS["expert_count"])
    keys: Keys = {
        SIZES["n_dense"]: config.count("first_k_dense_replace", n_layer),
        SIZES["n_shared"]: config.count("n_shared_experts", experts), "expert_count": experts,
        "expert_used_count": config.size("num_experts_per_tok", experts),
        "expert_feed_forward_length": config.size("moe_intermediate_size", LIMITS["expert_feed_forward_length"]),
        "expert_weights_scale": config.real("routed_scaling_factor", 1.0),
    }  # fmt: skip
    found = rope_parameters(config)
    if (scale := found.get("mscale")) != found.get("mscale_all_dim"):
        raise config.error("mscale", f"is {brief(scale)}", "mscale_all_dim's value")
    keys |= {LOG_MULTIPLIER: 0.1 * config.real("mscale", of=found)} if scale else {}
    return keys | latent.config_keys(config)


ARCH = Architecture(
    name="deepseek2",
    hparams=hparams,
    keys=frozenset({LOG_MULTIPLIER, "expert_weights_scale", "expert_weights_norm", *SIZES.values()}),
    tensors=tensors,
    build=build,
    today=unsplit.split,
    classes={"DeepseekV2ForCausalLM": v2, "DeepseekV3ForCausalLM": v3},
    names=names.NORMS | names.FFN | latent.NAMES | names.moe("mlp", "gate_proj", "up_proj", "down_proj") | {
        "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
    },
    reordered=False,
    writable=False,
)  # fmt: skip
