"""Modules as transformers writes those of BitNet."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.huggingface.writers.codes import Parts, Tensors


def ternary(w: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """Codes -1, 0 and 1, and their number, so that none is far from its value."""
    scale = np.float32(np.abs(w).max() * 2 / 3)
    return np.clip(np.rint(w / scale), -1, 1).astype(np.float32), scale


def bitnet(*, divides: bool, dtype: Any = np.float32) -> Tensors:
    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        from transformers.integrations.bitnet import pack_weights  # imports torch's compiler, 550 modules

        codes, scale = ternary(w)
        stored = np.array([1 / scale if divides else scale], dtype)
        packed = pack_weights(torch.from_numpy(codes.copy())).numpy()
        value = np.float32(1) / stored.astype(np.float32) if divides else stored.astype(np.float32)
        return {"weight": packed, "weight_scale": stored}, codes * value

    return tensors
