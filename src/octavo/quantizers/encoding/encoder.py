"""`encode`: rows of floats to packed blocks of any format that models are quantized to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.backends.cores import threads_of
from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import BlockFormat, by_name, quantize_reference
from octavo.formats.spec import F32, U8
from octavo.quantizers.encoding.kernels.recipe import LEAST_IMPORTANCE

ENCODABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
             "IQ4_NL", "IQ4_XS", "MXFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0",
             "TQ2_0")
"""Names of the formats that `encode` knows: those of weights in GGUF models."""


def encode(
    values: npt.ArrayLike,
    format: str | BlockFormat,
    *,
    importance: npt.ArrayLike | None = None,
    threads: int | None = None,
) -> U8:
    """Rows [rows, K] as packed blocks of a format: uint8 [rows, bytes of a row].

    K-quants, IQ and TQ formats and MXFP4 search for the scales, minima and points of grids that leave the least squared
    error, weighted by sqrt(x^2 + mean x^2 / 4), MXFP4 by nothing. Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 are what ggml's
    reference encoders write, and F16 and BF16 round to nearest.

    `importance`, float32 [K], is the mean squared activation of each input of the product (an importance matrix). With
    it every block format but Q8_0 searches, with errors weighted by importance * sqrt(x^2 + 2 * mean x^2), much
    as llama.cpp weighs them. Only its proportions count; if all of it is 0, all inputs count the same. A weight whose
    input has the importance 0 is clipped to the range of its group's others, so that it costs them nothing.

    The bytes do not depend on `threads` (default: one for each core that this process may use). A format's first call
    compiles its kernel, which is then kept on disk.

    Raises NonFiniteError at the first NaN or Inf, with its row and column; QuantFormatError for a format that nothing
    writes, rows that are not whole blocks, and values beyond the format's range; UsageError for an importance that does
    not fit the rows, or is negative.
    """
    fmt = _format(format)
    rows = rows_of(values, fmt)
    weights = _importance(importance, rows.shape[1])
    count = threads_of(threads)
    if not rows.size:
        return np.zeros((len(rows), fmt.row_bytes(rows.shape[1])), np.uint8)
    from octavo.quantizers.encoding import encoder_threads

    largest = encoder_threads.largest(rows, count)
    if not np.isfinite(largest):
        _raise_non_finite(rows)
    packed = encoder_threads.encode_rows(rows, fmt, weights, count)
    _require_range(packed, fmt, largest)
    return packed


def _format(format: str | BlockFormat) -> BlockFormat:
    fmt = by_name(format) if isinstance(format, str) else format
    if fmt.name not in ENCODABLE:
        raise QuantFormatError(f"no encoder for {fmt.name} (allowed: {', '.join(ENCODABLE)})")
    return fmt


def rows_of(values: npt.ArrayLike, fmt: BlockFormat) -> F32:
    """Values as float32 rows [N, K] of whole blocks. Raises QuantFormatError where they are none."""
    rows = np.ascontiguousarray(values, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] % fmt.block:
        raise QuantFormatError(
            f"values of shape {rows.shape} are not rows of whole {fmt.name} blocks"
            f" (allowed: two dimensions, the last a multiple of {fmt.block})"
        )
    return rows


def _importance(importance: npt.ArrayLike | None, k: int) -> F32 | None:
    """Importance over its mean, nowhere zero."""
    if importance is None:
        return None
    weights = np.ascontiguousarray(importance, dtype=np.float32)
    if weights.shape != (k,):
        raise UsageError(f"importance of shape {weights.shape} for rows of {k} values (allowed: ({k},))")
    bad = ~np.isfinite(weights)
    if bad.any():
        at = int(bad.argmax())
        raise NonFiniteError(f"importance: {weights[at]} at column {at}")
    if (weights < 0).any():
        at = int((weights < 0).argmax())
        raise UsageError(f"importance is {weights[at]:g} at column {at} (allowed: 0 or more)")
    mean = weights.mean(dtype=np.float64) if k else 0.0
    scaled = weights / mean if mean > 0 else np.ones(k)
    return np.maximum(scaled, LEAST_IMPORTANCE).astype(np.float32)


def _raise_non_finite(rows: F32) -> None:
    for i, row in enumerate(rows):
        finite = np.isfinite(row)
        if not finite.all():
            at = int(finite.argmin())
            raise NonFiniteError(f"values: {row[at]} at row {i}, column {at}")


def _require_range(packed: U8, fmt: BlockFormat, largest: float) -> None:
    """Raises where a scale, a minimum or a number was beyond f16 (or bf16)."""
    if fmt.is_float:
        quantize_reference([largest], fmt)  # raises if even the largest is beyond it
        return
    blocks = packed.reshape(-1).view(fmt.dtype)
    for field in fmt.fields:
        if field.kind == "f16" and not np.isfinite(blocks[field.name]).all():
            raise QuantFormatError(f"the value {largest:g} is beyond the range of {fmt.name}, whose scales are f16")
