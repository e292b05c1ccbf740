"""Schemes of quantization as a checkpoint that is written names them in `quantization_config`, in the terms of
compressed-tensors.

The fields are those of https://github.com/vllm-project/compressed-tensors: a group of modules has arguments for its
weights and for its activations, and a format says how the weights lie in the file.
"""

from __future__ import annotations

from typing import Any

from octavo.formats.rows import Scheme

KEY, METHOD = "quantization_config", "compressed-tensors"


def layouts(scheme: Scheme) -> tuple[str, ...]:
    """The ways in which a scheme's weights may lie in a file, the first the one that is written."""
    if scheme.kind == "float":
        return ("float-quantized",)
    return ("pack-quantized", "int-quantized") if scheme.bits == 4 else ("int-quantized",)


def packs(scheme: Scheme) -> bool:
    """Whether codes are written several to a word."""
    return layouts(scheme)[0] == "pack-quantized"


def weight_arguments(scheme: Scheme) -> dict[str, Any]:
    """How weights are quantized, in the words of compressed-tensors."""
    strategy = "channel" if scheme.group is None else "group"
    return {"num_bits": scheme.bits, "type": scheme.kind, "strategy": strategy, "group_size": scheme.group}


def quantization_config(scheme: Scheme, ignored: list[str]) -> dict[str, Any]:
    """The value of `quantization_config`; `ignored` names the linear layers that are not quantized."""
    weights = {"symmetric": True, "dynamic": False, "actorder": None, "observer": "minmax", **weight_arguments(scheme)}
    tokens = {
        "num_bits": 8, "type": scheme.kind, "strategy": "token", "group_size": None, "symmetric": True,
        "dynamic": True, "actorder": None, "observer": None,
    }  # fmt: skip
    layout = layouts(scheme)[0]
    group = {
        "targets": ["Linear"], "weights": weights, "input_activations": tokens, "output_activations": None,
        "format": layout,
    }  # fmt: skip
    return {
        "quant_method": METHOD, "format": layout, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ignored, "kv_cache_scheme": None,
    }  # fmt: skip
