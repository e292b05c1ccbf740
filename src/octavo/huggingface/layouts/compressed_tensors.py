"""compressed-tensors: which modules have which scheme, by `quantization_config`.

A group of modules has arguments for its weights and its activations, and a format says how weights lie in the file
(https://github.com/vllm-project/compressed-tensors). `compressed_weights` reads those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from octavo.huggingface.layouts import compressed_weights as weights
from octavo.huggingface.layouts.compressed_weights import Arguments, Tokens
from octavo.huggingface.layouts.match import Pattern
from octavo.huggingface.layouts.module import Module
from octavo.huggingface.layouts.quant_settings import QuantSettings, brief
from octavo.io.gguf import LazyTensor

KEY = "quantization_config"
MICRO = 32
"""Values that share a power of two."""
KEYS = (
    "quant_method", "config_groups", "ignore", "format", "kv_cache_scheme", "quantization_status", "version",
    "global_compression_ratio", "sparsity_config", "transform_config", "compression_ratio",
)
GROUP_KEYS = ("targets", "weights", "input_activations", "output_activations", "format")
ARGUMENTS = (
    "num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder", "scale_dtype",
    "zp_dtype", "observer", "observer_kwargs", "scale_calculation",
)
"""Keys of weights, of activations, and of the cache."""
STRATEGIES = {"int": ("channel", "group", "tensor"), "float": ("channel", "tensor", "block", "group", "tensor_group")}
_INT8, _FP8 = {"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "float"}
_TOKEN = {"strategy": "token", "dynamic": True}
_G128 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
_GROUPS = {bits: {**_G128, "num_bits": bits} for bits in range(2, 8)}
_NV = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_MX = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
_MX8 = {**_MX, "num_bits": 8}
PRESETS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "W8A16": ({**_INT8, "strategy": "channel"}, None),
    **{f"W{bits}A16": (group, None) for bits, group in _GROUPS.items()},
    **{f"W{bits}A8": (group, {**_INT8, **_TOKEN}) for bits, group in _GROUPS.items()},
    "W4A16_ASYM": ({**_G128, "symmetric": False}, None),
    "W8A8": ({**_INT8, "strategy": "channel"}, {**_INT8, **_TOKEN}),
    "INT8": ({**_INT8, "strategy": "channel"}, {**_INT8, **_TOKEN}),
    "W4AFP8": (_G128, {**_FP8, **_TOKEN}),
    "FP8": ({**_FP8, "strategy": "tensor"}, {**_FP8, "strategy": "tensor", "dynamic": False}),
    "FP8_DYNAMIC": ({**_FP8, "strategy": "channel"}, {**_FP8, **_TOKEN}),
    "FP8_BLOCK": ({**_FP8, "strategy": "block", "block_structure": [128, 128]},
                  {**_FP8, "strategy": "group", "group_size": 128, "dynamic": True}),
    "NVFP4A16": (_NV, None),
    "NVFP4": (_NV, {**_NV, "dynamic": "local"}),
    "MXFP4A16": (_MX, None),
    "MXFP4": (_MX, {**_MX, "dynamic": True}),
    "MXFP8A16": (_MX8, None),
    "MXFP8": (_MX8, {**_MX8, "dynamic": True}),
}
"""Groups that are named instead of described: the arguments of weights and of activations."""

Read = Callable[[Module, Arguments], list[LazyTensor]]
READERS: dict[str, Read] = {
    "pack-quantized": weights.packed_integers,
    "int-quantized": weights.plain_integers,
    "float-quantized": weights.floats,
    "naive-quantized": weights.naive,
    "nvfp4-pack-quantized": weights.nvfp4,
    "mxfp4-pack-quantized": weights.mxfp4,
    "mxfp8-quantized": weights.mxfp8,
}
"""How weights are read, by format."""


@dataclass(frozen=True)
class _Target:
    """A name, an expression for names ("re:"), or the class of all linear layers."""

    name: str
    pattern: Pattern | None

    @classmethod
    def of(cls, settings: QuantSettings, text: str) -> _Target:
        return cls(text, Pattern.of(settings, text[3:]) if text.startswith("re:") else None)

    def matches(self, module: str) -> bool:
        return self.pattern.matches(module) if self.pattern else self.name == module


class Compressed:
    """The layout; the groups of its configuration."""

    def __init__(self, settings: QuantSettings) -> None:
        settings.only(KEYS)
        settings.empty("sparsity_config", "transform_config")
        _require_cache_scheme(settings)
        top = settings.values.get("format")
        groups = settings.part("config_groups")
        if not groups.values and not settings.values.get("kv_cache_scheme"):
            raise settings.error("config_groups", "has 0 groups", "1 or more")
        self._groups = [_group(groups, name, value, top) for name, value in groups.values.items()]
        self._ignored = [_Target.of(settings.part("ignore", {}), text) for text in settings.strings("ignore")]

    def read(self, module: Module) -> list[LazyTensor]:
        if not any(end in module for end in ("weight_scale", "weight_packed")):
            return []
        if any(target.matches(module.name) for target in self._ignored):
            raise module.error("weight_scale", "is there, and the configuration's `ignore` has the module")
        arguments = self._arguments(module)
        return READERS[arguments.format](module, arguments)

    def _arguments(self, module: Module) -> Arguments:
        """Those of the group of a module: one that names it, else one whose expression matches, else a class."""
        for is_name in (True, False):
            for targets, arguments in self._groups:
                if any((target.pattern is None) is is_name and target.matches(module.name) for target in targets):
                    return arguments
        for targets, arguments in self._groups:
            if any(target.name == "Linear" for target in targets):
                return arguments
        raise module.error("weight_scale", "is there, and no group of the configuration has the module")


def _group(groups: QuantSettings, name: str, value: Any, top: Any) -> tuple[list[_Target], Arguments]:
    if isinstance(value, list):
        if name not in PRESETS:
            raise groups.error(name, "is a list of targets under no known name", ", ".join(PRESETS))
        weights_, tokens = PRESETS[name]
        value = {"targets": value, "weights": weights_, "input_activations": tokens}
    group = groups.part(name, value)
    group.only(GROUP_KEYS)
    group.empty("output_activations")
    names = group.strings("targets")
    unknown = next(
        (t for t in names if t != "Linear" and not t.startswith("re:") and "." not in t and t != "lm_head"), ""
    )
    if not names or unknown:
        raise group.error("targets", f"is {brief(names or None)}", "Linear, names of modules, or re: and an expression")
    targets = [_Target.of(group.part("targets", {}), text) for text in names]
    return targets, _arguments(group, top)


def _arguments(group: QuantSettings, top: Any) -> Arguments:
    w = group.part("weights")
    w.only(ARGUMENTS)
    kind = w.one_of("type", ("int", "float"), "int")
    bits = w.one_of("num_bits", (8, 4, 3, 2, 5, 6, 7) if kind == "int" else (8, 4))
    w.one_of("dynamic", (False, None), False)
    symmetric = w.one_of("symmetric", (True,) if kind == "float" else (True, False), True)
    strategy = w.one_of("strategy", STRATEGIES[kind])
    size = w.values.get("group_size")
    whole = size in (None, -1, 0) and strategy not in ("group", "tensor_group")
    group_size = None if whole or size == -1 else w.size("group_size")
    if strategy in ("channel", "tensor") and group_size is not None:
        raise w.error("group_size", f"is {brief(size)} where the strategy is {strategy}", "null")
    if strategy == "block":
        w.one_of("block_structure", ([128, 128],))
    w.one_of("actorder", (None, True, False, "static", "weight", "group", "dynamic"), None)
    a = Arguments(kind, bits, symmetric, strategy, group_size, _tokens(group, kind), "")
    return replace(a, format=_format(group, top, a))


def _format(group: QuantSettings, top: Any, a: Arguments) -> str:
    """How weights lie: what the group says, else what the whole configuration does."""
    if a.kind == "float" and a.bits == 4:
        allowed = ["nvfp4-pack-quantized" if a.strategy == "tensor_group" else "mxfp4-pack-quantized"]
    elif a.kind == "float":
        allowed = ["float-quantized", "naive-quantized"] + (["mxfp8-quantized"] if a.group == MICRO else [])
    else:
        allowed = ["int-quantized", "naive-quantized"] + (["pack-quantized"] if a.bits < 8 or not a.coded else [])
    where = group if group.values.get("format") is not None else QuantSettings(group.config, KEY, {"format": top})
    found: str = where.one_of("format", allowed)
    return found


def _tokens(group: QuantSettings, kind: str) -> Tokens:
    """What activations of weights of a kind are quantized to."""
    if group.values.get("input_activations") is None:
        return "floats"
    tokens = group.part("input_activations")
    tokens.only(ARGUMENTS)
    of_floats = tokens.one_of("type", ("int", "float") if kind == "int" else ("float",)) == "float"
    if kind == "float" and tokens.values.get("num_bits") == 4:
        tokens.one_of("strategy", ("tensor_group", "group"))
        return "unused"
    tokens.one_of("num_bits", (8,))
    tokens.one_of("symmetric", (True,), True)
    dynamic = tokens.one_of("dynamic", (True, False), False)
    tokens.one_of("strategy", ("token", "tensor", "group") if dynamic else ("tensor",))
    if of_floats and kind == "int":
        return "unused"
    return "codes" if dynamic else "static"


def _require_cache_scheme(settings: QuantSettings) -> None:
    if settings.values.get("kv_cache_scheme"):
        scheme = settings.part("kv_cache_scheme")
        scheme.only(ARGUMENTS)
        scheme.one_of("num_bits", (8,))
        scheme.one_of("symmetric", (True,), True)
        scheme.one_of("type", ("float", "int"), "float")
        scheme.one_of("strategy", ("tensor", "attn_head"))
        scheme.one_of("dynamic", (False,), False)
