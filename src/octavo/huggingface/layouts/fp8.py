"""Hugging Face's fp8, DeepSeek's and Qwen's: e4m3 weights with a scale for the tensor or for blocks of 128 x 128.

    weight            F8_E4M3 [N, K]
    weight_scale_inv  floats or F8_E8M0 [N / 128, K / 128], the last of each partial, or one; older: weight_scale, one,
                      or one for each matrix of a module that is several
    input_scale       one, where activations have a static scale; also called activation_scale

w = scale * number, whatever the name says.
"""

from __future__ import annotations

from octavo.huggingface.layouts import float8
from octavo.huggingface.layouts.module import HALVES, Module
from octavo.huggingface.layouts.quant_settings import QuantSettings
from octavo.io.gguf import LazyTensor

USED = (
    "quant_method", "fmt", "activation_scheme", "weight_block_size", "modules_to_not_convert", "ignored_layers",
    "scale_fmt",
)
OF_THE_WRITER = ("dequantize", "kv_cache_scheme", "is_checkpoint_fp8_serialized", "quantization_type")
SCALES = ("weight_scale_inv", "weight_scale")
INPUT_SCALES = ("input_scale", "activation_scale")


class Fp8:
    """The layout."""

    def __init__(self, settings: QuantSettings) -> None:
        settings.only(USED, OF_THE_WRITER)
        settings.one_of("fmt", ("e4m3", "float8_e4m3fn", None), None)
        settings.one_of("scale_fmt", ("ue8m0", "float", None), None)
        self._static = settings.one_of("activation_scheme", ("dynamic", "static"), "dynamic") == "static"
        self._square = settings.one_of("weight_block_size", ([128, 128], None), None) is not None
        self._plain = settings.strings("modules_to_not_convert") + settings.strings("ignored_layers")

    def read(self, module: Module) -> list[LazyTensor]:
        end = next((end for end in SCALES if end in module), None)
        if end is None:
            return []
        named = next((name for name in self._plain if name == module.name), None)
        if named is not None:
            raise module.error(end, "is there, and the configuration leaves the module as it is")
        group = float8.SIDE if self._square else None
        weight = float8.weight(module, end, group, square=self._square, token_codes=not self._square)
        given = next((scale for scale in INPUT_SCALES if scale in module), INPUT_SCALES[0])
        if not self._static:
            return [weight]
        if self._square:  # activations of block-scaled weights stay floats here
            module.take(given, HALVES)
            return [weight]
        return [weight, module.input_scale(given)]
