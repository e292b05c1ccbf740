"""AutoRound: modules as GPTQ's or AWQ's, which `packing_format` tells, or of floating-point numbers, which
`data_type` does (`auto_round_floats`), and settings of some modules in `extra_config`.

Keys of `extra_config` are names of modules, or expressions for these; a module of 16 bits there is as it lies. Releases
before 0.5 call the packing `backend`. Blocks of fp8 had the `quant_method` fp8 until August 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo.huggingface.layouts.auto_round_floats import Floats
from octavo.huggingface.layouts.awq import Awq
from octavo.huggingface.layouts.gptq import Gptq
from octavo.huggingface.layouts.match import Pattern
from octavo.huggingface.layouts.module import Module, QuantizedLayout
from octavo.huggingface.layouts.quant_settings import QuantSettings
from octavo.huggingface.layouts.writer_keys import AUTO_ROUND
from octavo.io.gguf import LazyTensor

PACKINGS = {
    **dict.fromkeys(("auto_round:auto_gptq", "auto_round:gptq", "auto_round:gptq:exllamav2"), "gptq"),
    **dict.fromkeys(("auto_round", "auto_round:gptqmodel", "auto_round:exllamav2", "auto_round:tritonv2"), "gptq_v2"),
    **dict.fromkeys(("auto_round:auto_awq", "auto_round:awq"), "awq"),
}
"""What modules of integers are packed as: AWQ's gemm, or GPTQ's format of that name, of which only the second has true
zero points."""
OF_FLOATS = ("auto_round:llm_compressor", "auto_round:fp8_static", "auto_round:fp8", "fp8")
OLDER = "intel/auto-round"
USED = ("quant_method", "packing_format", "bits", "group_size", "sym", "data_type", "act_bits", "extra_config", "fmt")
OF_ACTIVATIONS = ("act_data_type", "act_dynamic", "act_group_size", "act_sym")
"""Which say nothing where activations have 16 bits."""
OF_FP8 = ("activation_scheme", "weight_block_size", "ignored_layers", "modules_to_not_convert")
"""Which say again what other keys do."""
OF_CODES = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv")
FLOAT_BITS = 16
_NAME = re.compile(r"[\w.-]+")


class AutoRound:
    """The layout, and what the configuration says of some modules; None where these are as they lie."""

    def __init__(self, settings: QuantSettings) -> None:
        settings.only(USED, OF_ACTIVATIONS, AUTO_ROUND, OF_FP8)
        key = "backend" if settings.values["quant_method"] == OLDER else "packing_format"
        packing = settings.one_of(key, (*PACKINGS, *OF_FLOATS), "auto_round:auto_gptq")
        self._all = _layout(settings, {}, packing)
        self._own: dict[str, QuantizedLayout | None] = {}
        self._matching: list[tuple[Pattern, QuantizedLayout | None]] = []
        for name in settings.part("extra_config").values if settings.values.get("extra_config") else {}:
            own = settings.part("extra_config").part(name)
            self._own[name] = _layout(own, settings.values, packing)
            if not _NAME.fullmatch(name):
                self._matching.append((Pattern.of(own, name), self._own[name]))

    def read(self, module: Module) -> list[LazyTensor]:
        layout = self._layout_of(module.name)
        if layout is not None:
            return layout.read(module)
        if end := next((end for end in OF_CODES if end in module), None):
            raise module.error(end, "is there, and the configuration's `extra_config` leaves the module as it is")
        return []

    def _layout_of(self, name: str) -> QuantizedLayout | None:
        """That of a module's own settings, else of the first expression that matches it, else of all."""
        if name in self._own:
            return self._own[name]
        return next((layout for pattern, layout in self._matching if pattern.matches(name)), self._all)


def _layout(own: QuantSettings, others: Mapping[str, Any], packing: str) -> QuantizedLayout | None:
    """The layout that an object asks for, `others` where it says nothing."""
    own.only(USED, OF_ACTIVATIONS, AUTO_ROUND, OF_FP8)
    settings = QuantSettings(own.config, own.path, {**others, **own.values})
    bits = settings.values.get("bits")
    if type(bits) is int and bits >= FLOAT_BITS:
        return None
    if settings.values.get("data_type") not in ("int", None):
        return Floats(settings)
    if packing not in PACKINGS:
        raise settings.error("data_type", f"is int in a packing {packing}", "mx_fp, mx_int, nv_fp or fp")
    settings.one_of("act_bits", (16, 32, None), None)
    said = {"group_size": settings.values.get("group_size", 128)} | ({} if bits is None else {"bits": bits})
    symmetric = settings.flag("sym", True)
    kind = PACKINGS[packing]
    if kind == "awq":
        return Awq(QuantSettings(own.config, own.path, said | {"zero_point": not symmetric}))
    return Gptq(QuantSettings(own.config, own.path, said | {"sym": symmetric, "checkpoint_format": kind}))
