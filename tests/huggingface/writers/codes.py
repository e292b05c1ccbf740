"""What writers of checkpoints share: codes of a matrix's values, their scales, and codes in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Parts = dict[str, np.ndarray]
Tensors = Callable[[np.ndarray], tuple[Parts, np.ndarray]]


def stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [N, K] as one number of K * bits bits a row, the first code lowest, cut into int32 words."""
    each = (codes[..., None] >> np.arange(bits)) & 1
    row = each.reshape(len(codes), -1).astype(np.uint8)
    whole = np.zeros((len(codes), -(-row.shape[1] // 32) * 32), np.uint8)
    whole[:, : row.shape[1]] = row
    return np.packbits(whole, axis=1, bitorder="little").view("<i4")


def affine(w: np.ndarray, bits: int, group: int, dtype: Any = np.float16) -> tuple[np.ndarray, ...]:
    """Codes [N, K], scales [N, K / group] of a type and whole zero points of each group's range."""
    groups = w.reshape(len(w), -1, group)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scale = ((high - low) / ((1 << bits) - 1)).astype(dtype)
    d = scale.astype(np.float32)
    zero = np.clip(np.round(-low / d), 0, (1 << bits) - 1)
    codes = np.clip(np.round(groups / d[..., None]) + zero[..., None], 0, (1 << bits) - 1)
    return codes.reshape(w.shape).astype(np.int64), scale, zero.astype(np.int64)


def symmetric(w: np.ndarray, bits: int, group: int, dtype: Any = np.float16) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N, K] from 0 on, whose middle is 0.0, and scales."""
    groups, middle = w.reshape(len(w), -1, group), 1 << (bits - 1)
    scale = (np.abs(groups).max(-1) / (middle - 0.5)).astype(dtype)
    codes = np.clip(np.round(groups / scale.astype(np.float32)[..., None]) + middle, 0, 2 * middle - 1)
    return codes.reshape(w.shape).astype(np.int64), scale


def values(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray | int) -> np.ndarray:
    """(code - zero) * scale, float32."""
    groups = codes.reshape(*scale.shape, -1) - (zero if isinstance(zero, int) else zero[..., None])
    return (groups.astype(np.float32) * scale.astype(np.float32)[..., None]).reshape(codes.shape)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e2m1(x: np.ndarray) -> np.ndarray:
    """The nearest codes of E2M1 numbers."""
    return np.abs(x[..., None] - E2M1).argmin(-1).astype(np.uint8)


def pairs(codes: np.ndarray) -> np.ndarray:
    return codes[..., 0::2] | codes[..., 1::2] << 4
