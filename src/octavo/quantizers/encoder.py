"""`encode`: rows of floats to packed blocks of any format that models are quantized to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import BlockFormat, by_name, quantize_reference
from octavo.formats.spec import F32, U8

ENCODABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
             "IQ4_NL", "IQ4_XS", "MXFP4")  # fmt: skip
"""Names of the formats that `encode` knows: those of weights in GGUF models."""


def encode(
    values: npt.ArrayLike,
    format: str | BlockFormat,
    *,
    importance: npt.ArrayLike | None = None,
    threads: int | None = None,
) -> U8:
    """Rows [rows, K] as packed blocks of a format: uint8 [rows, bytes of a row].

    `importance`, float32 [K], weighs the squared error of each column: the mean squared activation of each input of the
    product (an importance matrix). The formats with integer scales need none to search for better scales than the
    extremes of a group ask for; F32, F16, BF16, Q8_0 and MXFP4 have nothing to weigh and ignore it.

    The bytes do not depend on `threads` (default: one for each core that this process may use).

    Raises NonFiniteError at the first NaN or Inf, with its row and column; QuantFormatError for a format that nothing
    writes, rows that are not whole blocks, and values beyond the format's range; UsageError for an importance that does
    not fit the rows, or is negative.
    """
    fmt = _format(format)
    rows = _rows(values, fmt)
    _importance(importance, rows.shape[1])
    _threads(threads)
    return quantize_reference(rows, fmt).data


def _format(format: str | BlockFormat) -> BlockFormat:
    fmt = by_name(format) if isinstance(format, str) else format
    if fmt.name not in ENCODABLE:
        raise QuantFormatError(f"there is no encoder for {fmt.name} (allowed: {', '.join(ENCODABLE)})")
    return fmt


def _rows(values: npt.ArrayLike, fmt: BlockFormat) -> F32:
    rows = np.ascontiguousarray(values, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] % fmt.block:
        raise QuantFormatError(
            f"values of shape {rows.shape} are not rows of whole {fmt.name} blocks"
            f" (allowed: two dimensions, the last a multiple of {fmt.block})"
        )
    return rows


def _importance(importance: npt.ArrayLike | None, k: int) -> F32 | None:
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
    return weights


def _threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= 1024:
        raise UsageError(f"threads is {threads} (allowed: 1 to 1024)")
