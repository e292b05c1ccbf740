"""Quantized modules as AutoAWQ stores them (version gemm): the inverse of `layouts.awq`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from octavo.formats.spec import U8, AnyArray
from octavo.huggingface.layouts.awq import PLACES
from octavo.huggingface.scheme_weight import Coded
from octavo.huggingface.schemes import CheckpointScheme
from octavo.huggingface.writers.words import words
from octavo.io.safetensors import TensorHead


def quantization_config(scheme: CheckpointScheme, ignored: list[str]) -> dict[str, Any]:
    """The value of `quantization_config`; `ignored` names the linear layers that are not quantized."""
    return {
        "quant_method": "awq", "bits": scheme.bits, "group_size": scheme.group, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": ignored,
    }


def module_heads(name: str, scheme: CheckpointScheme, shape: tuple[int, ...]) -> list[TensorHead]:
    """The tensors of a linear layer whose weight [N, K] would be called `name`, "m.weight"."""
    n, k = shape
    module, groups = name.removesuffix(".weight"), scheme.groups(k)
    return [
        TensorHead(f"{module}.qweight", "I32", (k, n // 8)),
        TensorHead(f"{module}.qzeros", "I32", (groups, n // 8)),
        TensorHead(f"{module}.scales", "F16", (groups, n)),
    ]


def module_arrays(scheme: CheckpointScheme, coded: Coded) -> Iterator[AnyArray]:
    """The values of `module_heads`."""
    assert coded.zeros is not None
    yield _columns(coded.q)
    yield _columns(coded.zeros)
    yield np.ascontiguousarray(coded.scales.T, "<f2")


def _columns(codes: U8) -> AnyArray:
    """Codes uint8 [N, K] as words I32 [K, N / 8]."""
    octets = codes.T.reshape(codes.shape[1], -1, 8)[..., np.argsort(PLACES)]
    return words(np.ascontiguousarray(octets.reshape(codes.shape[1], -1)), 4)
