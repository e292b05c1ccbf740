"""Types of weights whose rows are not whole blocks of 256: the smallest that errs no more than the one wished for."""

from __future__ import annotations

import numpy as np

from octavo.errors import about_tensor
from octavo.formats import BlockFormat, QTensor, by_name, dequantize
from octavo.formats.spec import F32
from octavo.quantizers.encoding.encoder import encode
from octavo.quantizers.job.job_source import SourceTensor
from octavo.quantizers.mix.mixing import fallback

OF_32 = ("Q4_0", "IQ4_NL", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Types of blocks of 32 values."""
MEASURED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
"""Types that rows are measured in; for others the table of `fallback` stands."""
WORTH = 1.25
"""Times the squared error of the type wished for that a smaller one may have."""
ROWS = 64
"""Rows by which types are compared."""


def smallest_as_good(tensor: SourceTensor, wished: BlockFormat, importance: F32 | None = None) -> BlockFormat:
    """The type of a tensor whose rows are not whole blocks of `wished`.

    It is the smallest of OF_32, up to llama.cpp's choice (`fallback`), whose squared error over some rows is at most
    WORTH times that of `wished`, and of several of its size the best; or llama.cpp's, where none is. Rows are laid end
    to end for `wished`. Errors are weighted by `importance`, float32 [K] or [experts, K], if there is one.
    """
    k, largest = tensor.shape[-1], fallback(wished, tensor.shape[-1])
    if wished.name not in MEASURED or largest.name not in OF_32:
        return largest
    with about_tensor(tensor.name, None):
        return _smallest(dequantize(tensor.load()).reshape(-1, k), wished, largest, importance)


def _smallest(values: F32, wished: BlockFormat, largest: BlockFormat, importance: F32 | None) -> BlockFormat:
    k = values.shape[1]
    values = values[np.linspace(0, len(values) - 1, min(ROWS, len(values))).astype(int)]
    importance = None if importance is None else importance.reshape(-1, k).mean(axis=0)
    weights = np.ones(k, np.float32) if importance is None else importance
    whole = values.size // wished.block * wished.block
    tiled = np.tile(weights, len(values))[:whole].reshape(-1, wished.block)
    allowed = WORTH * _error(values.reshape(-1)[:whole].reshape(-1, wished.block), wished, None, tiled)
    formats = [fmt for fmt in map(by_name, OF_32) if fmt.bits_per_weight <= largest.bits_per_weight]
    for bits in sorted({fmt.bits_per_weight for fmt in formats}):
        alike = (fmt for fmt in formats if fmt.bits_per_weight == bits)
        found = {fmt: _error(values, fmt, importance, weights) for fmt in alike}
        best = min(found, key=lambda fmt: found[fmt])
        if found[best] <= allowed:
            return best
    return largest


def _error(values: F32, fmt: BlockFormat, importance: F32 | None, weights: F32) -> float:
    """The mean of squared errors of rows in a format, encoded with an importance and weighted by `weights`."""
    packed = encode(values, fmt, importance=importance)
    wrong = np.square(dequantize(QTensor(fmt, values.shape, packed)) - values, dtype=np.float64)
    return float((wrong * weights).sum() / max(float(np.broadcast_to(weights, values.shape).sum()), 1e-30))
