"""ERNIE 4.5 with experts: chosen by softmax and biases, behind dense layers, with one feed-forward for all tokens."""

from dataclasses import replace

from octavo.models.moe import bailingmoe
from octavo.models.shared import experts, names
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.experts import SOFTMAX, Routed
from octavo.models.shared.reader import EXPERT_WIDTH, LIMITS, MetadataReader, brief

STEP = "interleave_moe_layer_step"


def complete(r: MetadataReader, hp: Routed) -> Routed:
    if (step := r.integer(STEP, 1)) != 1:
        raise r.error(STEP, f"is {step}", "1, no dense layers behind those of experts")
    return replace(hp, **experts.read(r, hp, SOFTMAX, normalized=True))


def config_keys(config: Config) -> Keys:
    """Raises ModelError for dense layers behind those of experts."""
    n, count = config.n_layer, config.size("moe_num_experts", 1 << 16)
    if (last := config.values.get("moe_layer_end_index", -1)) not in (-1, n - 1):
        raise config.error("moe_layer_end_index", f"is {brief(last)}", f"{n - 1}, the last layer")
    width, shared = config.size("moe_intermediate_size", LIMITS[EXPERT_WIDTH]), "moe_num_shared_experts"
    return {
        "expert_count": count, "expert_used_count": config.size("moe_k", count), STEP: 1, EXPERT_WIDTH: width,
        experts.N_SHARED: config.count(shared, count), experts.SHARED_WIDTH: config.count(shared, count) * width,
        experts.N_DENSE: config.count("moe_layer_start_index", n),
    }


ARCH = Architecture(
    name="ernie4_5-moe",
    network=bailingmoe.NETWORK,
    keys=(*experts.KEYS, STEP),
    sizes=Sizes(kind=Routed, complete=complete),
    interleaved=True,
    experts=True,
    classes={"Ernie4_5_MoeForCausalLM": config_keys},
    only={"use_bias": False, "moe_layer_interval": 1},
    names=names.LLAMA | names.ROUTED | {"mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"},
    unused=("mtp_",),
    tied=True,
    layout=TensorLayout(permuted=False),
)
