"""Modules as compressed-tensors writes them, and others that keep rows of codes beside scales."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.huggingface.writers.codes import E2M1, Parts, Tensors, affine, e2m1, pairs, stream, symmetric, values

INPUT: Parts = {"input_scale": np.array([0.01], np.float32)}


def packed(bits: int, group: int | None, *, sym: bool = True, dtype: Any = np.float32, loose: bool = False,
           ordered: bool = False, static: bool = False) -> Tensors:
    """compressed-tensors' pack-quantized; `loose` zero points have a byte each, `static` a scale for activations."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        k = w.shape[1]
        size = group or k
        perm = np.random.default_rng(k).permutation(k) if ordered else np.arange(k)
        if sym:
            codes, scale = symmetric(w[:, perm], bits, size, dtype)
            zero = np.full(scale.shape, 1 << (bits - 1))
        else:
            codes, scale, zero = affine(w[:, perm], bits, size, dtype)
        want = values(codes, scale, zero)
        natural, there = np.empty_like(codes), np.empty_like(want)
        natural[:, perm], there[:, perm] = codes, want
        parts = {"weight_packed": stream(natural, bits), "weight_scale": scale, "weight_shape": np.array(w.shape)}
        if not sym:
            low = (zero - (1 << (bits - 1))).astype(np.int8)
            parts["weight_zero_point"] = low if loose else np.ascontiguousarray(stream(zero.T, bits).T)
        if ordered:
            parts["weight_g_idx"] = np.empty(k, np.int32)
            parts["weight_g_idx"][perm] = np.arange(k) // size
        return parts | (INPUT if static else {}), there

    return tensors


def int8(group: int | None, dtype: Any = np.float32, *, static: bool = False) -> Tensors:
    """compressed-tensors' int-quantized; `static` with a scale for activations."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        codes, scale = symmetric(w, 8, group or w.shape[1], dtype)
        parts = {"weight": (codes - 128).astype(np.int8), "weight_scale": scale}
        return parts | (INPUT if static else {}), values(codes, scale, 128)

    return tensors


def fp8(
    strategy: str, end: str = "weight_scale", shape: tuple[int, ...] = (1,), static: bool = False, dtype: Any = None,
    flat: bool = False,
) -> Tensors:
    """e4m3 numbers with a scale for the tensor, each row, or blocks of 128 x 128, powers of two if of a `dtype`.

    flat  scales in one dimension
    """

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        n, k = w.shape
        rows, columns = {"tensor": (n, k), "channel": (1, k), "block": (128, 128)}[strategy]
        scale = np.empty((-(-n // rows), -(-k // columns)), np.float32)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                block = w[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
                scale[i, j] = np.abs(block).max() / 448
        if dtype is not None:
            scale = np.exp2(np.ceil(np.log2(scale))).astype(np.float32)
        spread = np.repeat(np.repeat(scale, rows, axis=0)[:n], columns, axis=1)[:, :k]
        codes = (w / spread).astype(ml_dtypes.float8_e4m3fn)
        stored = scale if dtype is None else scale.astype(dtype)
        parts: Parts = {
            "weight": codes,
            end: stored.reshape(shape) if strategy == "tensor" else stored.ravel() if flat else stored,
        }
        return parts | (INPUT if static else {}), codes.astype(np.float32) * spread

    return tensors


def mxfp8(w: np.ndarray) -> tuple[Parts, np.ndarray]:
    """e4m3 numbers, with a power of two for each 32 of a row."""
    groups = w.reshape(len(w), -1, 32)
    exponent = np.ceil(np.log2(np.abs(groups).max(-1) / 448))
    each = np.exp2(exponent).astype(np.float32)[..., None]
    codes = (groups / each).astype(ml_dtypes.float8_e4m3fn)
    parts = {"weight": codes.reshape(w.shape), "weight_scale": (exponent + 127).astype(np.uint8)}
    return parts, (codes.astype(np.float32) * each).reshape(w.shape)


def mxfp4(codes_end: str = "weight_packed", scale_end: str = "weight_scale") -> Tensors:
    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        groups = w.reshape(*w.shape[:-1], -1, 32)
        exponent = np.floor(np.log2(np.abs(groups).max(-1))) - 2
        scale = np.exp2(exponent).astype(np.float32)
        codes = e2m1(groups / scale[..., None])
        want = (E2M1[codes] * scale[..., None]).reshape(w.shape)
        stored = {codes_end: pairs(codes.reshape(w.shape)), scale_end: (exponent + 127).astype(np.uint8)}
        return stored, want

    return tensors


def mxint4(w: np.ndarray) -> tuple[Parts, np.ndarray]:
    """AutoRound's quarters with a sign, and a power of two for each 32 of a row."""
    groups = w.reshape(len(w), -1, 32)
    exponent = np.ceil(np.log2(np.abs(groups).max(-1) / 1.75))
    each = np.exp2(exponent).astype(np.float32)[..., None]
    quarters = np.round(groups / each * 4)
    codes = np.abs(quarters).astype(np.uint8) | np.where(quarters < 0, 8, 0).astype(np.uint8)
    parts = {"weight_packed": pairs(codes.reshape(w.shape)), "weight_scale": (exponent + 127).astype(np.uint8)}
    return parts, (quarters / 4 * each).astype(np.float32).reshape(w.shape)


def nvfp4(
    codes_end: str, scale_end: str, global_end: str, *, divides: bool, given: float | None = None
) -> Tensors:
    """`given` is what the scales of groups are multiplied by, None for what the largest magnitude asks for."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        whole = np.float32(given or 448 * 6 / np.abs(w).max())
        if divides:  # a power of two, so that dividing by it and multiplying with its inverse are the same
            whole = np.exp2(np.floor(np.log2(whole))).astype(np.float32)
        factor = np.float32(1) / whole
        groups = w.reshape(len(w), -1, 16)
        scale = (np.abs(groups).max(-1) / 6 * whole).astype(ml_dtypes.float8_e4m3fn)
        each = scale.astype(np.float32)[..., None]
        codes = e2m1(groups / np.maximum(each * factor, 1e-20))
        parts = {
            codes_end: pairs(codes.reshape(w.shape)), scale_end: scale,
            global_end: np.array([whole if divides else factor], np.float32),
        }
        return parts, ((E2M1[codes] * each) * factor).reshape(w.shape)

    return tensors
