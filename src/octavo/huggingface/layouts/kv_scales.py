"""Scales for caches of 8 bits, which some checkpoints have for keys and values: read and checked, and used by no cache
here, as those are of floats or have scales of their own."""

from __future__ import annotations

import numpy as np

from octavo.errors import ModelError, shown
from octavo.formats.spec import F32
from octavo.io.safetensors import StoredTensor
from octavo.io.safetensors.file import FLOATS

ENDS = ("k_scale", "v_scale", "q_scale", "kv_scale")
OUTPUT = ("k_proj.output_scale", "v_proj.output_scale")
"""Ends of names; the latter are older."""


def is_kv_scale(name: str) -> bool:
    """Whether a tensor is called as scales of a cache are."""
    return name.rpartition(".")[2] in ENDS or name.endswith(OUTPUT)


def kv_scale(tensor: StoredTensor) -> F32:
    """The scales of a layer's keys or values, float32 [1] or [heads]. Raises ModelError unless all are over 0."""
    field = f"tensor {shown(tensor.name)}"
    if tensor.dtype not in FLOATS or tensor.nbytes > 1 << 16 or 0 in tensor.shape or len(tensor.shape) > 3:
        problem = f"is {tensor.dtype} {list(tensor.shape)}"
        raise ModelError(problem, file=tensor.file, field=field, allowed="floats, one or one a head")
    values = tensor.floats().reshape(-1)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ModelError(f"has scales down to {values.min()}", file=tensor.file, field=field, allowed="over 0")
    return values
