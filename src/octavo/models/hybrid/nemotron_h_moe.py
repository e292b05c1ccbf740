"""Nemotron 3: Nemotron-H whose feed-forwards are experts of two matrices, chosen by sigmoids, and one for all."""

from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.hybrid import nemotron_h
from octavo.models.hybrid.nemotron_h import CLASS, EXPERTS, KINDS, NAMES, PATTERN, NemotronH
from octavo.models.shared import experts, layers
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import CustomPart
from octavo.models.shared.experts import GATE, N_DENSE, N_SHARED, SHARED_WIDTH, SIGMOID, Routed
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import EXPERT_WIDTH, LIMITS, MetadataReader
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector, with_scales

LATENT = "moe_latent_size"


@dataclass(frozen=True, kw_only=True)
class NemotronHMoe(NemotronH, Routed):
    """Width of what experts are given and give, where that is not the model's: 0 where it is."""

    n_latent: int = 0


def complete(r: MetadataReader, hp: NemotronHMoe) -> NemotronHMoe:
    """Raises ModelError for experts that are not chosen by sigmoids, none for all tokens, and layers before them."""
    hp = replace(hp, **vars(nemotron_h.complete(r, hp)) | experts.read(r, hp, SIGMOID, normalized=True))
    for field, fits in ((GATE, hp.gate == SIGMOID), (N_DENSE, not hp.n_dense)):
        if not fits:
            raise r.error(field, "is another way to have experts than this architecture's", "none")
    if not hp.n_ff_shared:
        raise r.error(SHARED_WIDTH, "is 0 or missing", f"1 to {LIMITS[SHARED_WIDTH]}")
    return hp


def feed_forward_tensors(hp: NemotronHMoe, layer: int) -> Tensors:
    width = hp.n_latent or hp.n_embd
    shapes = {"ffn_up_shexp": (hp.n_ff_shared, hp.n_embd), "ffn_down_shexp": (hp.n_embd, hp.n_ff_shared)}
    if hp.n_latent:
        shapes |= {"ffn_latent_down": (width, hp.n_embd), "ffn_latent_up": (hp.n_embd, width)}
    experts = with_scales({
        "ffn_up_exps.weight": Expected((hp.n_expert, hp.n_ff_expert, width)),
        "ffn_down_exps.weight": Expected((hp.n_expert, width, hp.n_ff_expert)),
    })
    router = {"ffn_gate_inp.weight": matrix(hp.n_expert, hp.n_embd), "exp_probs_b.bias": vector(hp.n_expert)}
    return router | experts | layers.products(shapes)


def feed_forward(g: GraphBuilder, hp: NemotronHMoe, b: Weights, h: Node, layer: int) -> Node:
    ids, weights = experts.chosen(g, hp, b, h)
    given = layers.linear(g, b, "ffn_latent_down", h) if hp.n_latent else h
    y = g.relu_squared(layers.experts(g, b, "ffn_up_exps", given, ids))
    y = g.weighted_sum(layers.experts(g, b, "ffn_down_exps", y, ids), weights)
    y = layers.linear(g, b, "ffn_latent_up", y) if hp.n_latent else y
    shared = g.relu_squared(layers.linear(g, b, "ffn_up_shexp", h))
    return g.add(y, layers.linear(g, b, "ffn_down_shexp", shared))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for layers with one feed-forward, too."""
    width = config.size("moe_intermediate_size", LIMITS[EXPERT_WIDTH])
    return nemotron_h.layer_keys(config, EXPERTS, width) | experts.choice_keys(config, SIGMOID, normalized=True) | {
        **experts.group_keys(config), N_SHARED: config.size("n_shared_experts", LIMITS["expert_count"], 1),
        SHARED_WIDTH: config.size("moe_shared_expert_intermediate_size", LIMITS[SHARED_WIDTH]),
    }


ARCH = replace(
    nemotron_h.ARCH,
    name="nemotron_h_moe",
    network=nemotron_h.decoder(CustomPart(feed_forward_tensors, feed_forward)),
    keys=(
        *nemotron_h.KEYS, *experts.KEYS, Key("n_latent", LATENT, LATENT, default=0, limit=LIMITS["embedding_length"]),
    ),
    sizes=replace(nemotron_h.ARCH.sizes, kind=NemotronHMoe, complete=complete),
    experts=True,
    classes={f"{CLASS} with {KINDS} moe": config_keys, f"{CLASS} with {PATTERN} E": config_keys},
    only={**nemotron_h.ARCH.only, "mlp_bias": False},
    names=NAMES | {
        "mixer.gate": "ffn_gate_inp", "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mixer.experts.*.up_proj": "ffn_up_exps", "mixer.experts.*.down_proj": "ffn_down_exps",
        "mixer.experts.up_proj": "ffn_up_exps", "mixer.experts.down_proj": "ffn_down_exps",
        "mixer.shared_experts.up_proj": "ffn_up_shexp", "mixer.shared_experts.down_proj": "ffn_down_shexp",
        "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up",
    },
)
