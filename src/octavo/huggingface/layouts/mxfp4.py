"""gpt-oss: the experts' weights in MXFP4, stacked.

    experts.X_blocks  U8 [E, N, K / 32, 16], two codes in a byte, the first in its low half
    experts.X_scales  U8 [E, N, K / 32], exponents

X is gate_up_proj or down_proj. Of gate_up_proj, gate's rows are the even ones and up's the odd ones.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.huggingface.layouts.float4 import mxfp4
from octavo.huggingface.layouts.module import Module, as_experts
from octavo.huggingface.layouts.quant_settings import QuantSettings
from octavo.io.gguf import LazyTensor

USED, OF_THE_WRITER = ("quant_method", "modules_to_not_convert"), ("dequantize",)
BLOCKS, SCALES = "_blocks", "_scales"


class Mxfp4:
    """The layout."""

    def __init__(self, settings: QuantSettings) -> None:
        settings.only(USED, OF_THE_WRITER)
        settings.strings("modules_to_not_convert")

    def read(self, module: Module) -> list[LazyTensor]:
        return [_experts(module, end.removesuffix(BLOCKS)) for end in module.parts if end.endswith(BLOCKS)]


def _experts(module: Module, stem: str) -> LazyTensor:
    """The stacked weights [E, N, K] of a projection."""
    blocks, scales = module.take(stem + BLOCKS, ("U8",)), module.take(stem + SCALES, ("U8", "F8_E8M0"))
    if len(blocks.shape) != 4 or blocks.shape[3] != 16 or 0 in blocks.shape or blocks.shape[:3] != scales.shape:
        problem = f"is U8 {list(blocks.shape)} beside scales {list(scales.shape)}"
        raise module.error(stem + BLOCKS, problem, "[E, N, K / 32, 16] beside [E, N, K / 32]")
    e, n, groups = scales.shape
    codes, exponents = replace(blocks, shape=(e * n, groups * 16)), replace(scales, shape=(e * n, groups))
    rows = mxfp4(Module(module.folder, module.name, {stem + BLOCKS: codes, stem + SCALES: exponents}), stem + BLOCKS,
                 stem + SCALES)
    return as_experts(rows, f"{module.name}.{stem}", e)
