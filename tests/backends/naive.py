"""Naive twins of kernels that no op of the reference backend states: what they compute, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.graph.node import PAGE_SIZE

Array = np.ndarray[Any, Any]


def rows_of(pages: Array, length: int) -> Array:
    """The rows of a paged cache that hold a sequence's first `length` positions, in order."""
    rows: Array = (pages[:, None].astype(np.int64) * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)[:length]
    return rows


def decoded_pages(codes: Array, scales: Array, pages: Array, length: int) -> Array:
    """Keys or values [length, heads, dim] of a sequence: codes [rows, heads, dim] times their scales.

    scales  [heads]; [pages, heads, PAGE_SIZE], one a position; or [rows, heads, dim / 32]
    """
    rows = rows_of(pages, length)
    if scales.ndim == 1:
        wide = scales[:, None]
    elif scales.shape[0] == codes.shape[0]:
        wide = np.repeat(scales[rows], codes.shape[2] // scales.shape[2], axis=2)
    else:
        wide = scales.swapaxes(1, 2).reshape(-1, scales.shape[1], 1)[rows]
    return codes[rows].astype(np.float64) * wide


def encoded_blocks(x: Array, top: float, *, centered: bool, block: int = 2 * PAGE_SIZE) -> list[tuple[Array, float]]:
    """Keys or values [length, dim] of a head, block after block: as numbers up to `top`, not rounded, and what 1 means.

    centered  x is less the mean of the page in the middle first, which changes all scores of a query alike
    """
    if centered:
        middle = (len(x) - 1) // PAGE_SIZE // 2 * PAGE_SIZE
        x = x - x[middle : middle + PAGE_SIZE].mean(axis=0)
    blocks = [x[i : i + block] for i in range(0, len(x), block)]
    units = [np.abs(part).max() / top for part in blocks]
    return [(part / unit, float(unit)) for part, unit in zip(blocks, units, strict=True)]
