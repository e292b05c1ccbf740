"""Numbers rounded to few bits and back, as searches for scales try them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.errors import UsageError
from octavo.formats import rows
from octavo.formats.scalars import e4m3_to_f32, f32_to_e4m3
from octavo.formats.spec import F32

Rounding = Callable[[F32], F32]
"""Rows of values as they are once they are rounded, of the same shape."""


def as_they_are(x: F32) -> F32:
    """Numbers that are not rounded."""
    return x


def tokens_int8(x: F32) -> F32:
    """Activations [T, K] with int8 codes and a scale for each token, max|x| / 127."""
    return _symmetric(x, rows.INT8_TOP)


def tokens_fp8(x: F32) -> F32:
    """Activations [T, K] as e4m3 numbers with a scale for each token, max|x| / 448."""
    top = rows.FP8_TOP["e4m3"]
    scale = rows.symmetric_scale(x, top)
    return e4m3_to_f32(f32_to_e4m3(rows.in_range(x, scale, top))) * scale[..., None]


def tensor_int8(x: F32) -> F32:
    """Activations [T, K] with int8 codes and one scale for all of them, max|x| / 127."""
    return _symmetric(x.reshape(-1), rows.INT8_TOP).reshape(x.shape)


def tensor_fp8(x: F32) -> F32:
    """Activations [T, K] as e4m3 numbers with one scale for all of them, max|x| / 448."""
    return tokens_fp8(x.reshape(1, -1)).reshape(x.shape)


def rows_of_weights(bits: int) -> Rounding:
    """Weights [N, K] with symmetric codes of `bits` and a scale for each row."""
    return lambda w: _symmetric(w, 2 ** (bits - 1) - 1)


def groups_of_weights(bits: int, group: int, *, zero: bool = True) -> Rounding:
    """Weights [N, K] with a scale for each `group` of a row, and a zero point (AWQ) or codes around zero.

    The zero point is a code: the least value of a group of only positive ones is rounded too. Raises UsageError, when
    it is used, for a K that is not a multiple of the group.
    """

    def rounded(w: F32) -> F32:
        n, k = w.shape
        if k % group:
            raise UsageError(f"group is {group} for rows of {k} values (allowed: what divides them)")
        parts = w.reshape(n, k // group, group)
        return (_with_zero(parts, bits) if zero else _symmetric(parts, 2 ** (bits - 1) - 1)).reshape(n, k)

    return rounded


def _symmetric(values: F32, top: int) -> F32:
    codes, scales = rows.symmetric(values, top)
    return codes * scales[..., None]


def _with_zero(groups: F32, bits: int) -> F32:
    """scale = (max - min) / top, zero = round(-min / scale) as a code (arXiv 2306.00978's reference)."""
    top = np.float32(2**bits - 1)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    scale = np.maximum(high - low, np.float32(1e-5)) / top
    zero = np.clip(-np.rint(low / scale), 0, top)
    out: F32 = (np.clip(np.rint(groups / scale) + zero, 0, top) - zero) * scale
    return out
