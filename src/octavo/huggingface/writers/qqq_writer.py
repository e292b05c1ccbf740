"""Quantized modules in the order of QQQ's GPU kernel: the inverse of `layouts.qqq`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from octavo.formats.qqq import qqq_tensors
from octavo.formats.spec import AnyArray
from octavo.huggingface.scheme_weight import Coded, planes_of
from octavo.huggingface.schemes import CheckpointScheme
from octavo.io.safetensors import TensorHead


def quantization_config(scheme: CheckpointScheme, ignored: list[str]) -> dict[str, Any]:
    """The value of `quantization_config`. Layers that are not quantized are told by their tensors."""
    del ignored
    return {"quant_method": "qqq", "wbits": scheme.bits, "group_size": scheme.group or -1}


def module_heads(name: str, scheme: CheckpointScheme, shape: tuple[int, ...]) -> list[TensorHead]:
    """The tensors of a linear layer whose weight [N, K] would be called `name`, "m.weight"."""
    n, k = shape
    module = name.removesuffix(".weight")
    return [
        TensorHead(f"{module}.B", "I32", (k // 16, 2 * n)),
        TensorHead(f"{module}.s_channel", "F32", (1, n)),
        TensorHead(f"{module}.s_group", "F16", (k // scheme.group, n) if scheme.group else (0,)),
    ]


def module_arrays(scheme: CheckpointScheme, coded: Coded) -> Iterator[AnyArray]:
    """The values of `module_heads`."""
    planes, fmt = planes_of(scheme, coded)
    assert planes.d is not None
    codes = planes.q.astype(np.int8) - np.int8(fmt.offset)
    yield from qqq_tensors(codes, planes.d[:, 0], planes.sc).values()
