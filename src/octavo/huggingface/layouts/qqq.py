"""QQQ: 4-bit weights for 8-bit activations in the order of a GPU kernel; `formats.qqq` has that order.

B          I32 [K / 16, 2 N]
s_channel  F32 [1, N], of rows alone a sixteenth of what they are
s_group    F16 [K / 128, N], or empty
"""

from __future__ import annotations

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats import Planes, channel_format
from octavo.formats.qqq import qqq_codes
from octavo.formats.rows import GROUP
from octavo.huggingface.layouts.module import Module, Part
from octavo.huggingface.layouts.quant_settings import QuantSettings
from octavo.io.gguf import LazyTensor

USED = (
    "quant_method", "method", "wbits", "bits", "group_size", "sym", "desc_act", "format", "checkpoint_format",
    "quant_format",
)
OF_THE_WRITER = (
    "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "lm_head", "meta", "pack_dtype", "mse",
    "dynamic", "rotation", "act_group_aware",
)


class Qqq:
    """The layout."""

    def __init__(self, settings: QuantSettings) -> None:
        settings.only(USED, OF_THE_WRITER)
        settings.one_of("wbits" if "wbits" in settings.values else "bits", (4,))
        settings.one_of("method", ("qqq", None), None)
        settings.empty("dynamic", "rotation")
        self._grouped = settings.one_of("group_size", (-1, GROUP), -1) == GROUP

    def read(self, module: Module) -> list[LazyTensor]:
        if "B" not in module:
            return []
        words = module.take("B", ("I32",), (None, None))
        k, n = words.shape[0] * 16, words.shape[1] // 2
        if k % GROUP or n % 64:
            raise module.error("B", f"is I32 {list(words.shape)}", f"[K / 16, 2 N], K a multiple of {GROUP}, N of 64")
        channel = module.take("s_channel", ("F32",), (1, n))
        groups = module.take("s_group", ("F16",)) if "s_group" in module else None
        if self._grouped and (groups is None or groups.shape != (k // GROUP, n)):
            raise module.error("s_group", "is missing or of another shape", f"F16 {[k // GROUP, n]}")
        if not self._grouped and groups is not None and groups.nbytes:
            raise module.error("s_group", f"is F16 {list(groups.shape)} in a checkpoint without groups", "none")
        try:
            fmt = channel_format("INT4_G128" if self._grouped else "INT4", k)
        except QuantFormatError as error:
            raise module.error("B", str(error)) from None

        def load() -> Part:
            of_groups = groups.floats().astype("<f2") if self._grouped and groups is not None else None
            q, d, sc = qqq_codes(words.array(), channel.floats(), of_groups)
            codes = (q + np.int8(8)).view(np.uint8)
            return lambda part: Planes(codes[part], d=d[part, None], sc=None if sc is None else sc[part])

        return [module.weight(fmt, n, k, load)]
