"""Qwen2-VL and Qwen2.5-VL, text: Qwen2, whose rope has sections."""

from __future__ import annotations

from octavo.models.dense import qwen2
from octavo.models.shared import mrope, names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams
from octavo.models.shared.windows import PATTERN, window_of_some


def hparams(r: HyperparamReader) -> Hyperparams:
    hp = qwen2.hparams(r)
    mrope.check_sections(r, hp)
    return hp


def config_keys(config: Config) -> Keys:
    return window_of_some(config) | mrope.section_keys(config)


ARCH = Architecture(
    name="qwen2vl",
    hparams=hparams,
    keys=frozenset({PATTERN, mrope.SECTIONS}),
    tensors=qwen2.tensors,
    build=qwen2.build,
    classes={"Qwen2VLForConditionalGeneration": config_keys, "Qwen2_5_VLForConditionalGeneration": config_keys},
    names=names.LLAMA,
    is_70b=lambda heads, kv_heads, experts: True,
    writable=False,
)
