"""Looks for NaN and Inf in stored weights."""

from __future__ import annotations

import numpy as np

from octavo.formats.codec import chunks, dequantize
from octavo.formats.qtensor import QTensor


def scan_non_finite(tensor: QTensor) -> int:
    """How many of a tensor's weights are NaN or Inf when they are decoded to float32.

    A scale that is NaN or Inf shows in every weight of its group, and one that is finite but too large in those that
    overflow. Needs memory for a small part of the tensor at a time.
    """
    fmt = tensor.format
    stored, found = tensor.stored(), 0
    for part in chunks(tensor.size // fmt.block, fmt.block):
        blocks = stored.blocks(part)
        values = dequantize(QTensor(fmt, (len(blocks) * fmt.block,), blocks.reshape(-1)))
        found += values.size - int(np.count_nonzero(np.isfinite(values)))
    return found
