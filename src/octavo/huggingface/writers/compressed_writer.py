"""Quantized modules as compressed-tensors stores them: the inverse of `layouts.compressed_weights`.

The fields of the configuration are those of https://github.com/vllm-project/compressed-tensors: a group of modules has
arguments for its weights and for its activations, and a format says how the weights lie in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from octavo.formats.rows import GROUP
from octavo.formats.scalars import f32_to_e8m0_half, f32_to_ue4m3_half
from octavo.formats.spec import AnyArray
from octavo.huggingface.layouts.compressed_weights import PACKED, SCALE, SHAPE
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.huggingface.writers.words import pairs, words
from octavo.io.safetensors import TensorHead

CODES = {"int": "I8", "float": "F8_E4M3"}
"""Dtypes of codes of a byte each, by the kind of a scheme."""
GLOBAL = "weight_global_scale"


def module_heads(name: str, scheme: CheckpointScheme, shape: tuple[int, ...]) -> list[TensorHead]:
    """The tensors of a linear layer whose weight [N, K] would be called `name`, "m.weight"."""
    n, k = shape
    module = name.removesuffix(".weight")
    rows = -(-n // GROUP) if scheme.square else n
    scale = TensorHead(f"{module}.{SCALE}", scheme.scale, (rows, scheme.groups(k)))
    if scheme.packs:
        packed = TensorHead(f"{module}.{PACKED}", "I32", (n, k * scheme.bits // 32))
        return [packed, scale, TensorHead(f"{module}.{SHAPE}", "I64", (2,))]
    if scheme.bits == 8:
        return [TensorHead(name, CODES[scheme.kind], shape), scale]
    pairs = [TensorHead(f"{module}.{PACKED}", "U8", (n, k // 2)), scale]
    return [*pairs, TensorHead(f"{module}.{GLOBAL}", "F32", (1,))] if scheme.strategy == "tensor_group" else pairs


def module_arrays(scheme: CheckpointScheme, coded: Coded) -> Iterator[AnyArray]:
    """The values of `module_heads`."""
    q = coded.q
    if scheme.packs:
        yield words(q, scheme.bits)
    elif scheme.bits == 4:
        yield pairs(q)
    else:
        yield q if scheme.kind == "float" else q ^ np.uint8(0x80)
    yield _scales(scheme, coded)
    if scheme.packs:
        yield np.array(q.shape, dtype="<i8")
    if scheme.strategy == "tensor_group":
        yield np.array([coded.factor], "<f4")


def _scales(scheme: CheckpointScheme, coded: Coded) -> AnyArray:
    """As the file has them; planes of e2m1 numbers have half of that."""
    if scheme.scale == "U8":
        return f32_to_e8m0_half(coded.scales)
    if scheme.scale == "F8_E4M3":
        return f32_to_ue4m3_half(coded.scales)
    return np.ascontiguousarray(coded.scales, dtype="<f2" if scheme.scale == "F16" else "<f4")


def _weight_arguments(scheme: CheckpointScheme) -> dict[str, Any]:
    """How weights are quantized, in the words of compressed-tensors."""
    arguments = {"num_bits": scheme.bits, "type": scheme.kind, "strategy": scheme.strategy, "group_size": scheme.group}
    return {**arguments, "group_size": None, "block_structure": [GROUP, GROUP]} if scheme.square else arguments


def quantization_config(scheme: CheckpointScheme, ignored: list[str]) -> dict[str, Any]:
    """The value of `quantization_config`; `ignored` names the linear layers that are not quantized."""
    weights = {"symmetric": True, "dynamic": False, "actorder": None, "observer": "minmax", **_weight_arguments(scheme)}
    tokens = {
        "num_bits": 8, "type": scheme.kind, "strategy": "group" if scheme.square else "token",
        "group_size": GROUP if scheme.square else None, "symmetric": True, "dynamic": True, "actorder": None,
        "observer": None,
    }
    if scheme.static:
        tokens |= {"strategy": "tensor", "dynamic": False, "observer": "minmax"}
    group = {
        "targets": ["Linear"], "weights": weights, "input_activations": tokens if scheme.tokens else None,
        "output_activations": None, "format": scheme.layouts[0],
    }
    return {
        "quant_method": "compressed-tensors", "format": scheme.layouts[0], "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ignored, "kv_cache_scheme": None,
    }
