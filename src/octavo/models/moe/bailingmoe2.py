"""Ling 2 and Ring 2: q, k and v in one matrix, norms of q and k, rope on half of each head, DeepSeek's experts."""

from octavo.models.shared import experts, layers, names
from octavo.models.shared.architecture import Architecture, NextLayer
from octavo.models.shared.config import Config, Keys, nextn_keys
from octavo.models.shared.decoder import Attention, CustomPart, Decoder
from octavo.models.shared.experts import SIGMOID, Routed
from octavo.models.shared.reader import EXPERT_WIDTH
from octavo.models.shared.weights import Tensors


def feed_forward_tensors(hp: Routed, layer: int) -> Tensors:
    last = layers.norms(hp.n_embd, "layer_output_norm") if layer >= hp.n_layer else {}
    return experts.feed_forward_tensors(hp, layer) | last


def config_keys(config: Config) -> Keys:
    """Raises ModelError for an expert for all of another width."""
    keys = experts.config_keys(config, SIGMOID, normalized=True) | experts.group_keys(config)
    config.only({"moe_shared_expert_intermediate_size": keys[experts.N_SHARED] * keys[EXPERT_WIDTH]})
    return keys | nextn_keys(config)


ARCH = Architecture(
    name="bailingmoe2",
    network=Decoder(
        mixer=Attention(joined=True, output_bias=None, qk_norm="heads"),
        feed_forward=CustomPart(feed_forward_tensors, experts.feed_forward),
    ),
    keys=experts.KEYS,
    sizes=experts.sizes(SIGMOID, normalized=True),
    experts=True,
    next_layer=NextLayer(norm="layer_output_norm"),
    classes={"BailingMoeV2ForCausalLM": config_keys},
    only={
        "use_qkv_bias": False, "use_bias": False, "use_qk_norm": True, "norm_head": False, "use_rmsnorm": True,
        "moe_router_enable_expert_bias": True,
    },
    rotary_part=0.5,
    names=names.NORMS | names.FFN | names.ROUTED | names.NEXTN | {
        "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
        "attention.query_layernorm": "attn_q_norm", "attention.key_layernorm": "attn_k_norm",
        "mlp.gate.expert_bias": "exp_probs_b.bias", "final_layernorm": "layer_output_norm",
    },
    outer=names.outer("word_embeddings"),
    key_aliases={
        "num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts", "score_function": "scoring_func",
    },
)
