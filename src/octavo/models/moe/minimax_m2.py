"""MiniMax M2: q and k normed as whole rows, rope on a part of each head, experts chosen by sigmoids and biases."""

from octavo.models.shared import experts, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.experts import SIGMOID
from octavo.models.shared.reader import LIMITS, brief


def config_keys(config: Config) -> Keys:
    """Raises ModelError for other kinds of attention."""
    kinds = config.values.get("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise config.error("attn_type_list", f"is {brief(kinds)}", "1 for each layer")
    part = "rotary_dim"
    own = config.values.get(part) is not None
    dims = {"rope.dimension_count": config.size(part, LIMITS["attention.key_length"])} if own else {}
    return dims | expert_keys(config, "num_local_experts", width="intermediate_size") | {experts.GATE: SIGMOID}


ARCH = Architecture(
    name="minimax-m2",
    network=Decoder(mixer=Attention(qk_norm="rows"), feed_forward=experts.FEED_FORWARD),
    keys=experts.KEYS,
    sizes=experts.sizes(SIGMOID, normalized=True),
    experts=True,
    classes={"MiniMaxM2ForCausalLM": config_keys},
    only={
        "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
    },
    rotary_part=1.0,
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.moe("block_sparse_moe", "w1", "w3", "w2") | {
        "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias", **names.stacked("mlp"),
    },
)
