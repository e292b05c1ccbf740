"""Qwen3-MoE: Qwen3 with experts for a feed-forward."""

from functools import partial

from octavo.models.moe.qwen2moe import expert_layer_keys, words_of
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Written
from octavo.models.shared.config import Config, Keys, window_keys
from octavo.models.shared.decoder import Attention, Decoder, Experts
from octavo.models.shared.windows import Windows


def config_keys(config: Config) -> Keys:
    """Raises ModelError for weights of experts that are not normalized, and for dense layers between the others."""
    if not config.flag("norm_topk_prob", False):
        raise config.error("norm_topk_prob", "is false", "true")
    window = window_keys(config, 4096) if config.flag("use_sliding_window", False) else {}
    return window | expert_layer_keys(config)


ARCH = Architecture(
    name="qwen3moe",
    network=Decoder(mixer=Attention(qk_norm="heads"), feed_forward=Experts()),
    windows=Windows(0),
    experts=True,
    classes={"Qwen3MoeForCausalLM": config_keys},
    names=names.NORMS | names.ATTENTION | names.QK_NORMS | names.moe("mlp", "gate_proj", "up_proj", "down_proj"),
    written=Written(
        config=partial(words_of, model_type="qwen3_moe", normalized=True),
        biases={"attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output")},
    ),
)
