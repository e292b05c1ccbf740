"""Qwen2-MoE: Qwen2 with experts for a feed-forward, and one that all tokens go through as far as a gate says."""

from collections.abc import Mapping
from typing import Any

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Written
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.decoder import Decoder, Experts
from octavo.models.shared.hparams import Hyperparams, Key, expert_words
from octavo.models.shared.reader import LIMITS

SHARED_WIDTH = "expert_shared_feed_forward_length"
SHARED = Key(
    "n_ff_shared", SHARED_WIDTH, "shared_expert_intermediate_size", least=1, limit=LIMITS[SHARED_WIDTH],
    default=lambda hp: hp.n_ff or None,
)


def expert_layer_keys(config: Config) -> Keys:
    """Experts of all layers, and how wide they are. Raises ModelError for dense layers between them."""
    if config.values.get("decoder_sparse_step", 1) != 1 or config.values.get("mlp_only_layers"):
        raise config.error("mlp_only_layers", "has dense layers between those of experts", "experts in all layers")
    return expert_keys(config, "num_experts", "num_local_experts", width="moe_intermediate_size")


def words_of(hp: Hyperparams, model_type: str, *, normalized: bool) -> Mapping[str, Any]:
    """Of experts in all layers, whose weights are `normalized` or not."""
    return {
        "model_type": model_type, **expert_words(hp, "num_experts"), "moe_intermediate_size": hp.n_ff_expert,
        "norm_topk_prob": normalized, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }


def config_of(hp: Hyperparams) -> Mapping[str, Any]:
    return {"shared_expert_intermediate_size": hp.n_ff_shared, **words_of(hp, "qwen2_moe", normalized=False)}


MODULES = names.moe("mlp", "gate_proj", "up_proj", "down_proj") | {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", **names.ffn("mlp.shared_expert", "_shexp"),
}
"""The router, experts and the shared one."""

ARCH = Architecture(
    name="qwen2moe",
    network=Decoder(feed_forward=Experts(normalized=False, shared="gated")),
    keys=(SHARED,),
    experts=True,
    classes={"Qwen2MoeForCausalLM": expert_layer_keys},
    only={"use_sliding_window": False, "norm_topk_prob": False},
    names=names.NORMS | names.ATTENTION | MODULES,
    written=Written(config=config_of, biases={"qkv_bias": ("attn_q", "attn_k", "attn_v")}),
)
