"""Quantized modules as AutoGPTQ and GPTQModel store them (format "gptq"): the inverse of `layouts.gptq`.

Groups are runs of neighbours and codes lie around the middle, so zero points are all the same, less 1 as the format
has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from octavo.formats.rows import GROUP
from octavo.formats.spec import AnyArray
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.huggingface.writers.words import words
from octavo.io.safetensors import TensorHead


def quantization_config(scheme: CheckpointScheme, ignored: list[str]) -> dict[str, Any]:
    """The value of `quantization_config`; `dynamic` leaves out the layers of blocks that are not quantized."""
    routers = {f"-:{re.escape(name)}$": dict[str, Any]() for name in ignored if name != "lm_head"}
    return {
        "quant_method": "gptq", "bits": scheme.bits, "group_size": scheme.group or -1, "sym": True, "desc_act": False,
        "checkpoint_format": "gptq", "pack_dtype": "int32", "lm_head": False,
        **({"dynamic": routers} if routers else {}),
    }


def module_heads(name: str, scheme: CheckpointScheme, shape: tuple[int, ...]) -> list[TensorHead]:
    """The tensors of a linear layer whose weight [N, K] would be called `name`, "m.weight"."""
    n, k = shape
    module, groups = name.removesuffix(".weight"), scheme.groups(k)
    return [
        TensorHead(f"{module}.qweight", "I32", (k * scheme.bits // 32, n)),
        TensorHead(f"{module}.qzeros", "I32", (groups, n * scheme.bits // 32)),
        TensorHead(f"{module}.scales", scheme.scale, (groups, n)),
        TensorHead(f"{module}.g_idx", "I32", (k,)),
    ]


def module_arrays(scheme: CheckpointScheme, coded: Coded) -> Iterator[AnyArray]:
    """The values of `module_heads`."""
    n, k = coded.q.shape
    yield np.ascontiguousarray(words(coded.q, scheme.bits).T)
    middle = (1 << (scheme.bits - 1)) - 1
    yield words(np.full((scheme.groups(k), n), middle, np.uint8), scheme.bits)
    yield np.ascontiguousarray(coded.scales.T, "<f2" if scheme.scale == "F16" else "<f4")
    yield (np.arange(k) // (scheme.group or max(k, GROUP))).astype("<i4")
