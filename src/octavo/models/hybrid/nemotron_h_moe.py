"""Nemotron 3: Nemotron-H whose feed-forwards are experts of two matrices, chosen by sigmoids, and one for all."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.hybrid import nemotron_h
from octavo.models.hybrid.nemotron_h import CLASS, EXPERTS, FIELDS, KINDS, NAMES, OTHER_WORDS, OUTER, PATTERN, NemotronH
from octavo.models.shared import layers, routed, ssd
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import LIMITS, HyperparamReader
from octavo.models.shared.routed import GATE, N_DENSE, N_SHARED, SHARED_WIDTH, SIGMOID, Routed
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector, with_scales

LATENT = "moe_latent_size"


@dataclass(frozen=True, kw_only=True)
class NemotronHMoe(NemotronH, Routed):
    """Width of what experts are given and give, where that is not the model's: 0 where it is."""

    n_latent: int


def hparams(r: HyperparamReader) -> NemotronHMoe:
    """Raises ModelError for experts that are not chosen by sigmoids, none for all tokens, and layers before them."""
    hp = nemotron_h.read(r, has_experts=True)
    found = routed.read(r, hp, SIGMOID, normalized=True)
    for field, fits in ((GATE, found["gate"] == SIGMOID), (N_DENSE, not found["n_dense"])):
        if not fits:
            raise r.error(field, "is another way to have experts than this architecture's", "none")
    if not found["n_ff_shared"]:
        raise r.error(SHARED_WIDTH, "is 0 or missing", f"1 to {LIMITS[SHARED_WIDTH]}")
    latent = r.whole(LATENT, 0, LIMITS["embedding_length"])
    return hp.extended(NemotronHMoe, **found, n_latent=latent)


def tensors(hp: NemotronHMoe) -> Tensors:
    width = hp.n_latent or hp.n_embd
    products: Tensors = {
        "ffn_up_exps.weight": Expected((hp.n_expert, hp.n_ff_expert, width)),
        "ffn_down_exps.weight": Expected((hp.n_expert, width, hp.n_ff_expert)),
        "ffn_up_shexp.weight": matrix(hp.n_ff_shared, hp.n_embd),
        "ffn_down_shexp.weight": matrix(hp.n_embd, hp.n_ff_shared),
    }
    if hp.n_latent:
        products["ffn_latent_down.weight"] = matrix(width, hp.n_embd)
        products["ffn_latent_up.weight"] = matrix(hp.n_embd, width)
    router = {"ffn_gate_inp.weight": matrix(hp.n_expert, hp.n_embd), "exp_probs_b.bias": vector(hp.n_expert)}
    return nemotron_h.model_tensors(hp, router | with_scales(products))


def build(g: GraphBuilder, hp: NemotronHMoe, w: Weights) -> Node:
    return nemotron_h.graph(g, hp, w, lambda g, b, h: feed_forward(g, hp, b, h))


def feed_forward(g: GraphBuilder, hp: NemotronHMoe, b: Weights, h: Node) -> Node:
    ids, shares = routed.chosen(g, hp, b, h)
    given = layers.linear(g, b, "ffn_latent_down", h) if hp.n_latent else h
    y = g.relu_squared(layers.experts(g, b, "ffn_up_exps", given, ids))
    y = g.weighted_sum(layers.experts(g, b, "ffn_down_exps", y, ids), shares)
    y = layers.linear(g, b, "ffn_latent_up", y) if hp.n_latent else y
    return g.add(y, layers.plain_ffn(g, b, h, g.relu_squared, "_shexp"))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers with one feed-forward, too, and for biases of experts."""
    config.only_flags({"mlp_bias": False})
    width = config.size("moe_intermediate_size", LIMITS["expert_feed_forward_length"])
    latent = {} if config.values.get(LATENT) is None else {LATENT: config.size(LATENT, LIMITS["embedding_length"])}
    return nemotron_h.layer_keys(config, EXPERTS, width) | routed.choice_keys(config, SIGMOID, normalized=True) | {
        **routed.group_keys(config), **latent, N_SHARED: config.size("n_shared_experts", LIMITS["expert_count"], 1),
        SHARED_WIDTH: config.size("moe_shared_expert_intermediate_size", LIMITS[SHARED_WIDTH]),
    }


ARCH = Architecture(
    name="nemotron_h_moe",
    hparams=hparams,
    keys=FIELDS | routed.KEYS | {LATENT},
    tensors=tensors,
    build=build,
    classes={f"{CLASS} with {KINDS} moe": config_keys, f"{CLASS} with {PATTERN} E": config_keys},
    names=NAMES | {
        "mixer.gate": "ffn_gate_inp", "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mixer.experts.*.up_proj": "ffn_up_exps", "mixer.experts.*.down_proj": "ffn_down_exps",
        "mixer.experts.up_proj": "ffn_up_exps", "mixer.experts.down_proj": "ffn_down_exps",
        "mixer.shared_experts.up_proj": "ffn_up_shexp", "mixer.shared_experts.down_proj": "ffn_down_shexp",
        "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up",
    },
    base="backbone.",
    other_bases=("model.",),
    outer=OUTER,
    unused=("mtp.",),
    key_aliases=OTHER_WORDS,
    remade=ssd.remade,
    writable=False,
)
