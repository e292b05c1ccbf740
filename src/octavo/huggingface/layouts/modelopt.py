"""NVIDIA's ModelOpt: fp8 with a scale for the tensor, for rows or for blocks, MXFP8 and NVFP4.

FP8        weight F8_E4M3 [N, K], weight_scale F32 [], input_scale
FP8_PER_CHANNEL_PER_TOKEN  weight F8_E4M3 [N, K], weight_scale F32 [N] or [N, 1]
FP8_PB_WO  weight F8_E4M3 [N, K], weight_scale F32 [N / 128, 1, K / 128, 1] or [N / 128, K / 128]
FP8_BLOCK_SCALES  TensorRT-LLM's word for that; there are folders where it is weight_scale_inv, which multiplies, too
MXFP8      weight F8_E4M3 [N, K], weight_scale U8 [N, K / 32], exponents of 2 less 127
NVFP4      weight U8 [N, K / 2], weight_scale F8_E4M3 [N, K / 16], weight_scale_2 F32 [], which multiplies, input_scale

MIXED_PRECISION has an object for each quantized module, or for one that such modules are in, under `quantized_layers`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from fnmatch import fnmatchcase

from octavo.huggingface.layouts import float4, float8
from octavo.huggingface.layouts.module import HALVES, Module
from octavo.huggingface.layouts.quant_settings import QuantSettings
from octavo.io.gguf import LazyTensor

log = logging.getLogger("octavo")

GROUPS = {"NVFP4": 16, "W4A16_NVFP4": 16, "MXFP8": 32, "FP8_PB_WO": float8.SIDE, "FP8_BLOCK_SCALES": float8.SIDE}
"""What `group_size` is where it is there."""
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", *GROUPS)
SQUARE = ("FP8_PB_WO", "FP8_BLOCK_SCALES")
SCALES = ("weight_scale", "weight_scale_inv")
MIXED, NVFP4 = "MIXED_PRECISION", "NVFP4"
USED = (
    "quant_method", "quant_algo", "kv_cache_quant_algo", "exclude_modules", "ignore", "group_size", "kv_cache_scheme",
    "quantized_layers",
)
CACHE = ("num_bits", "type", "dynamic", "symmetric", "strategy", "group_size")
"""Keys of `kv_cache_scheme`, where that is an object."""
OF_THE_WRITER = ("producer", "config_groups", "has_zero_point", "pre_quant_scale", "version")


class ModelOpt:
    """The layout; hf_quant_config.json has the same keys under `quantization`."""

    def __init__(self, settings: QuantSettings) -> None:
        if "quantization" in settings.values:
            settings.only(("quantization", "quant_method"), OF_THE_WRITER)
            settings = settings.part("quantization")
        settings.only(USED, OF_THE_WRITER)
        settings.empty("has_zero_point", "pre_quant_scale")
        mixed = settings.values.get("quant_algo") == MIXED
        if not mixed:
            settings.empty("quantized_layers")
        layers = settings.part("quantized_layers").values if mixed else {}
        self._mixed = {name: _algorithm(settings.part("quantized_layers").part(name)) for name in layers}
        self._algorithm = None if mixed else _algorithm(settings)
        settings.one_of("kv_cache_quant_algo", (None, "FP8", NVFP4), None)
        if not has_cache_scales(settings):
            log.warning("%s: caches of NVFP4 are not known here; what the folder has for them is left out",
                        settings.config.file)
        self._plain = settings.strings("exclude_modules") + settings.strings("ignore")

    def read(self, module: Module) -> list[LazyTensor]:
        end = next((end for end in SCALES if end in module), None)
        if end is None:
            return []
        if any(fnmatchcase(module.name, pattern) for pattern in self._plain):
            raise module.error(end, "is there, and the configuration leaves the module as it is")
        algorithm = self._algorithm or self._of_module(module, end)
        if "input_scale" in module and algorithm != "FP8":  # activations of other algorithms stay floats here
            module.take("input_scale", HALVES)
        if algorithm.endswith("NVFP4"):
            return float4.nvfp4(module, "weight", "weight_scale", "weight_scale_2", divides=False)
        if algorithm == "MXFP8":
            return [float8.microscaled(module, "weight_scale")]
        square = algorithm in SQUARE
        if square:
            module = _flattened(module, end)
        group = float8.SIDE if square else None
        end = end if algorithm == "FP8_BLOCK_SCALES" else SCALES[0]
        weight = float8.weight(module, end, group, square=square, token_codes=not square)
        return [weight, module.input_scale()] if "input_scale" in module and not square else [weight]

    def _of_module(self, module: Module, end: str) -> str:
        """What `quantized_layers` has for a module, or for the nearest one that it is in."""
        name = module.name
        while name and name not in self._mixed:
            name = name.rpartition(".")[0]
        if not name:
            raise module.error(end, "is there, and the configuration's quantized_layers lacks the module")
        return self._mixed[name]


def has_cache_scales(settings: QuantSettings) -> bool:
    """Whether scales of caches beside the weights are for 8 bits."""
    inner = settings.part("quantization") if "quantization" in settings.values else settings
    scheme = inner.values.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        said = inner.part("kv_cache_scheme")
        said.only(CACHE)
        said.one_of("type", ("float",), "float")
        said.one_of("dynamic", (False,), False)
        said.one_of("symmetric", (True,), True)
        scheme = {4: NVFP4, 8: "FP8"}[said.one_of("num_bits", (4, 8))]
        if scheme != NVFP4:
            said.one_of("strategy", ("tensor",), "tensor")
            said.one_of("group_size", (None,), None)
    return NVFP4 not in (inner.values.get("kv_cache_quant_algo"), scheme)


def _algorithm(settings: QuantSettings) -> str:
    """What an object says of modules."""
    settings.only(USED, OF_THE_WRITER)
    found: str = settings.one_of("quant_algo", ALGORITHMS)
    if found in GROUPS:
        settings.one_of("group_size", (GROUPS[found], None), None)
    return found


def _flattened(module: Module, end: str) -> Module:
    """The module with the scales of blocks in two dimensions."""
    scale = module.parts[end]
    if len(scale.shape) == 4 and scale.shape[1] == scale.shape[3] == 1:
        flat = replace(scale, shape=(scale.shape[0], scale.shape[2]))
        return Module(module.folder, module.name, {**module.parts, end: flat}, module.used, module.config)
    return module
