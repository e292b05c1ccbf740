"""Modules as AutoAWQ and llm-awq write them."""

from __future__ import annotations

import numpy as np

from tests.huggingface.writers.codes import Parts, Tensors, affine, stream, symmetric, values


def coded(w: np.ndarray, group: int, sym: bool) -> tuple[np.ndarray, ...]:
    """Codes, scales and zero points, all 8 of symmetric ones."""
    if not sym:
        return affine(w, 4, group)
    codes, scale = symmetric(w, 4, group)
    return codes, scale, np.full(scale.shape, 8)


def columns(rows: np.ndarray) -> np.ndarray:
    """[R, N] -> int32 [R, N / 8], nibble i of a word column ORDER[i] of its eight."""
    out = np.zeros((len(rows), rows.shape[1] // 8), np.uint32)
    for i, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        out |= rows[:, column::8].astype(np.uint32) << np.uint32(4 * i)
    return out.view(np.int32)


def awq_gemm(group: int = 128, *, sym: bool = False, zeros: bool = True) -> Tensors:
    """`zeros` are in the file; they may be for symmetric weights, too."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        codes, scale, zero = coded(w, group, sym)
        parts = {"qweight": columns(codes.T), "qzeros": columns(zero.T), "scales": np.ascontiguousarray(scale.T)}
        if not zeros:
            del parts["qzeros"]
        return parts, values(codes, scale, zero)

    return tensors


def awq_gemv(group: int) -> Tensors:
    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        codes, scale, zero = affine(w, 4, group)
        words = {128: 1, 64: 2, 32: 4}[group]
        words *= -(-scale.shape[1] // (8 * words))
        padded = np.zeros((len(w), 8 * words), np.float16)
        padded[:, : scale.shape[1]] = scale
        zeros = np.zeros((len(w), 8 * words), np.int64)
        zeros[:, : zero.shape[1]] = zero
        parts = {"qweight": stream(codes, 4), "qzeros": stream(zeros, 4), "scales": padded}
        return parts, values(codes, scale, zero)

    return tensors
