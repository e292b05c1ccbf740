"""Qwen2-VL and Qwen2.5-VL, text: Qwen2, whose rope has sections."""

from dataclasses import replace

from octavo.models.dense import qwen2
from octavo.models.shared.mrope import Sections
from octavo.models.shared.windows import window_of_some

ARCH = replace(
    qwen2.ARCH,
    name="qwen2vl",
    keys=(Sections(),),
    classes=dict.fromkeys(("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"), window_of_some),
    written=None,
)
