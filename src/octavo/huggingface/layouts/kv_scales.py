"""Scales for caches of 8 bits, which some checkpoints have for keys and values: value = code * scale, of a layer, or of
each of its heads. As largest magnitudes they do for caches of all types that have static scales."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from octavo.errors import ModelError, shown
from octavo.formats.rows import FP8_TOP, INT8_TOP
from octavo.formats.spec import F32
from octavo.io.safetensors import StoredTensor
from octavo.io.safetensors.safetensors_file import FLOATS

ENDS = ("k_scale", "v_scale", "q_scale", "kv_scale")
OUTPUT = ("k_proj.output_scale", "v_proj.output_scale")
"""Ends of names; the latter are older."""
_LAYER = re.compile(r"(?:^|\.)(\d+)\.")
_KINDS = re.compile(r"(?:^|[._])(kv|k|v)(?:_scale|_proj\.output_scale)$")


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


def cache_magnitudes(scales: Mapping[str, F32], config: Mapping[str, object], folder: str) -> dict[str, F32]:
    """The largest magnitudes that scales, by their names, are for: float32 [1] or [heads], as "blk.0.cache_k.max".

    Scales of keys and of values may be one (`kv_scale`); those of queries are ignored here. Where all are 1 nothing
    was measured, and there are none. Raises ModelError for two scales of the same keys or values.
    """
    found: dict[str, F32] = {}
    for name, scale in scales.items():
        layer, kinds = _LAYER.search(name), _KINDS.search(name)
        if layer is None or kinds is None:
            continue
        for kind in kinds[1]:
            target = f"blk.{layer[1]}.cache_{kind}.max"
            if target in found:
                raise ModelError("is a second scale", file=folder, field=f"tensor {shown(name)}", allowed="one a cache")
            found[target] = scale * np.float32(_top(config))
    return {} if all((scale == 1).all() for scale in scales.values()) else found


def _top(config: Mapping[str, object]) -> float:
    """The largest code of the caches that scales are for: fp8 (e4m3) unless the configuration says integers."""
    part = config.get("quantization_config") or config.get("compression_config")
    scheme = part.get("kv_cache_scheme") if isinstance(part, Mapping) else None
    integers = isinstance(scheme, Mapping) and scheme.get("type") == "int"
    return INT8_TOP if integers else FP8_TOP["e4m3"]
