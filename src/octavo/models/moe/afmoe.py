"""AFMoE (Trinity): attention with a gate, norms before and behind, rope only with a window, DeepSeek's experts."""

from octavo.models.shared import experts, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.decoder import SANDWICH_NORMS, Attention, Decoder
from octavo.models.shared.experts import SIGMOID
from octavo.models.shared.reader import LIMITS
from octavo.models.shared.windows import PATTERN, Windows, layer_window_keys

PERIOD = 4


def config_keys(config: Config) -> Keys:
    """Raises ModelError for embeddings that are not scaled."""
    if not config.flag("mup_enabled", False):
        raise config.error("mup_enabled", "is false", "true")
    period = config.size("global_attn_every_n_layers", LIMITS["block_count"], PERIOD)
    windows = layer_window_keys(config, period, 1024)
    if windows and PATTERN not in windows and period != PERIOD:
        windows |= {PATTERN: period}
    return windows | expert_keys(config, "num_experts", width="moe_intermediate_size") | {
        experts.N_DENSE: config.count("num_dense_layers", config.n_layer),
        experts.N_SHARED: config.count("num_shared_experts", LIMITS["expert_count"]), experts.GATE: SIGMOID,
        experts.WEIGHT_SCALE: config.real("route_scale", 1.0), experts.NORMALIZED: True,
    }


ARCH = Architecture(
    name="afmoe",
    network=Decoder(
        mixer=Attention(qk_norm="heads", rope="window", gated=True), feed_forward=experts.FEED_FORWARD,
        norms=SANDWICH_NORMS, scaled_by_width=True,
    ),
    keys=experts.KEYS,
    windows=Windows(PERIOD),
    sizes=experts.sizes(SIGMOID),
    experts=True,
    classes={"AfmoeForCausalLM": config_keys},
    only={"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1, "num_expert_groups": 1},
    names=names.LATE_NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | names.ROUTED | {
        "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm", "self_attn.gate_proj": "attn_gate",
        "mlp.router.gate": "ffn_gate_inp", "mlp.expert_bias": "exp_probs_b.bias",
    },
)
