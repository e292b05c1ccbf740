"""Qwen3-VL with experts, text: Qwen3-MoE, whose rope has sections."""

from __future__ import annotations

from octavo.models.dense import qwen3vl
from octavo.models.moe import qwen3moe
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = read_shared(r, has_experts=True)
    qwen3vl.check_pictures(r, hp)
    return hp


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a router whose shares are not normalized, and for dense layers between the others."""
    config.only_flags({"norm_topk_prob": True})
    return qwen3vl.config_keys(config) | qwen3moe.expert_layer_keys(config)


ARCH = Architecture(
    name="qwen3vlmoe",
    hparams=hparams,
    keys=qwen3vl.KEYS,
    tensors=qwen3moe.tensors,
    build=qwen3moe.build,
    classes={"Qwen3VLMoeForConditionalGeneration": config_keys},
    names=qwen3moe.ARCH.names,
    columns="either",
    writable=False,
)
