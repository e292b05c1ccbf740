"""Modules as MLX writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.huggingface.writers.codes import Parts, Tensors, stream
from tests.huggingface.writers.compressed_tensors import mxfp4, mxfp8, nvfp4


def mlx(bits: int, group: int, dtype: Any = np.float16) -> Tensors:
    """MLX's affine mode: w = scale * code + bias."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        groups = w.reshape(len(w), -1, group)
        low = groups.min(-1).astype(dtype)
        scale = ((groups.max(-1) - groups.min(-1)) / ((1 << bits) - 1)).astype(dtype)
        d, b = scale.astype(np.float32)[..., None], low.astype(np.float32)[..., None]
        codes = np.clip(np.round((groups - b) / d), 0, (1 << bits) - 1)
        parts = {
            "weight": stream(codes.reshape(w.shape).astype(np.int64), bits).view(np.uint32),
            "scales": scale,
            "biases": low,
        }
        return parts, (codes.astype(np.float32) * d + b).reshape(w.shape)

    return tensors


def mlx_mxfp4(w: np.ndarray) -> tuple[Parts, np.ndarray]:
    parts, want = mxfp4("weight", "scales")(w)
    return {**parts, "weight": np.ascontiguousarray(parts["weight"]).view(np.uint32)}, want


def mlx_mxfp8(w: np.ndarray) -> tuple[Parts, np.ndarray]:
    parts, want = mxfp8(w)
    return {"weight": parts["weight"].view(np.uint32), "scales": parts["weight_scale"]}, want


def mlx_nvfp4(w: np.ndarray) -> tuple[Parts, np.ndarray]:
    """Without a scale of the tensor."""
    parts, want = nvfp4("weight", "scales", "whole", divides=False, given=1.0)(w)
    codes, scales = np.ascontiguousarray(parts["weight"]), parts["scales"]
    return {"weight": codes.view(np.uint32), "scales": scales.view(np.uint8)}, want
