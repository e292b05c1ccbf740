"""Scales for caches of 8 bits as compressed-tensors has them: `k_scale` and `v_scale` of each layer's attention.

value = code * scale. Those of fp8 are of all of a layer's keys or values, which is what vLLM reads; those of int8
of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import UsageError
from octavo.formats.rows import FP8_TOP, INT8_TOP
from octavo.formats.spec import F32
from octavo.huggingface.tensors.tensor_names import checkpoint_name
from octavo.models import ModelSpec

TOPS = {"int8": float(INT8_TOP), "fp8": FP8_TOP["e4m3"]}
"""The largest code of a cache's type."""


def cache_scales(model: ModelSpec, caches: Mapping[str, F32], kv: str, asked: str = "--kv") -> dict[str, F32]:
    """Scales by their tensors' names, float32 [1] or [heads], of the largest magnitudes [heads] of caches.

    caches  by name, as "blk.0.cache_k"
    asked   the option that wants them

    Raises UsageError for a model that keeps something else than keys and values.
    """
    found: dict[str, F32] = {}
    for name, largest in caches.items():
        layer, _, kind = name.rpartition(".")
        module = checkpoint_name(f"{layer}.attn_output.weight", model.architecture)
        if module is None or kind not in ("cache_k", "cache_v") or name.replace("_k", "_v") not in caches:
            raise UsageError(f"{asked} {kv} for a model that keeps {name} instead of keys and values")
        scales = (largest if kv == "int8" else largest.max(keepdims=True)) / np.float32(TOPS[kv])
        parent = module.rsplit(".", 2)[0]
        found[f"{parent}.{kind[-1]}_scale"] = np.maximum(scales, np.finfo(np.float32).tiny)
    return found


def cache_scheme(kv: str) -> dict[str, Any]:
    """The value of `kv_cache_scheme`."""
    kind, strategy = ("int", "attn_head") if kv == "int8" else ("float", "tensor")
    return {"num_bits": 8, "type": kind, "strategy": strategy, "dynamic": False, "symmetric": True}
