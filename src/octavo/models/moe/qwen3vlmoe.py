"""Qwen3-VL with experts, text: Qwen3-MoE, whose rope has sections."""

from dataclasses import replace

from octavo.models.dense import qwen3vl
from octavo.models.moe import qwen2moe, qwen3moe
from octavo.models.shared.architecture import TensorLayout

ARCH = replace(
    qwen3moe.ARCH,
    name="qwen3vlmoe",
    keys=qwen3vl.KEYS,
    windows=None,
    sizes=qwen3vl.ARCH.sizes,
    classes={"Qwen3VLMoeForConditionalGeneration":
        lambda config: qwen3vl.config_keys(config) | qwen2moe.expert_layer_keys(config)},
    only={"norm_topk_prob": True},
    layout=TensorLayout(columns="either"),
    written=None,
)
