"""gpt-oss: the experts' weights in MXFP4, stacked.

    experts.X_blocks  U8 [E, N, K / 32, 16], two codes in a byte, the first in its low half
    experts.X_scales  U8 [E, N, K / 32], exponents

X is gate_up_proj or down_proj. Of gate_up_proj, gate's rows are the even ones and up's the odd ones; here they become
the first half and the second, as other architectures have them, in gate_up_proj_bias too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from octavo.formats import QTensor, by_name
from octavo.huggingface.layouts.float4 import mxfp4
from octavo.huggingface.layouts.module import FLOATS, Module
from octavo.huggingface.layouts.settings import Settings
from octavo.io.gguf import LazyTensor

BLOCKS, JOINED = "_blocks", "gate_up_proj"


class Mxfp4:
    """The layout."""

    def __init__(self, settings: Settings) -> None:
        settings.only(("quant_method", "modules_to_not_convert"), ("dequantize",))
        settings.strings("modules_to_not_convert")

    def read(self, module: Module) -> list[LazyTensor]:
        stems = [end.removesuffix(BLOCKS) for end in module.parts if end.endswith(BLOCKS)]
        found = [_experts(module, stem) for stem in stems]
        if JOINED in stems and f"{JOINED}_bias" in module:
            bias = module.take(f"{JOINED}_bias", FLOATS, (None, None))
            fmt = by_name(bias.dtype)
            found.append(LazyTensor(bias.name, fmt, bias.shape, lambda: _apart(bias.load())))
        return found


def _experts(module: Module, stem: str) -> LazyTensor:
    """The stacked weights [E, N, K] of a projection."""
    blocks, scales = module.take(stem + BLOCKS, ("U8",)), module.take(f"{stem}_scales", ("U8", "F8_E8M0"))
    if len(blocks.shape) != 4 or blocks.shape[3] != 16 or 0 in blocks.shape or blocks.shape[:3] != scales.shape:
        problem = f"is U8 {list(blocks.shape)} beside scales {list(scales.shape)}"
        raise module.error(stem + BLOCKS, problem, "[E, N, K / 32, 16] beside [E, N, K / 32]")
    e, n, groups = scales.shape
    flat = {
        "codes": replace(blocks, shape=(e * n, groups * 16)), "scales": replace(scales, shape=(e * n, groups))
    }  # fmt: skip
    rows = mxfp4(Module(module.folder, f"{module.name}.{stem}", flat), "codes", "scales")
    load: Callable[[], QTensor] = lambda: _stacked(rows, (e, n, groups * 32))  # noqa: E731
    made = load if stem != JOINED else lambda: _apart(load())
    return LazyTensor(f"{module.name}.{stem}", rows.format, (e, n, groups * 32), made)


def _stacked(rows: LazyTensor, shape: tuple[int, int, int]) -> QTensor:
    data = rows.load().data
    return QTensor(rows.format, shape, data.reshape(shape[0], shape[1], -1))


def _apart(tensor: QTensor) -> QTensor:
    """Even rows (or values of a bias) of each expert, then odd ones."""
    rows = tensor.data.reshape(tensor.shape[0], tensor.shape[1], -1)
    ordered = np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1)
    return QTensor(tensor.format, tensor.shape, np.ascontiguousarray(ordered).reshape(tensor.data.shape))
