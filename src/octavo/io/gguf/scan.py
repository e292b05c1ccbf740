"""Looks for NaN and Inf in stored weights."""

from __future__ import annotations

import numpy as np

from octavo.formats.codec import chunks, unpack
from octavo.formats.qtensor import QTensor


def scan_non_finite(tensor: QTensor) -> int:
    """How many NaN and Inf are stored: among the scales and minima, or the values themselves of a plain format.

    Needs memory for a small part of the tensor at a time.
    """
    fmt = tensor.format
    packed = tensor.data.reshape(-1, fmt.block_bytes)
    found = 0
    for part in chunks(len(packed), fmt.block):
        blocks = packed[part]
        planes = unpack(QTensor(fmt, (len(blocks) * fmt.block,), blocks.reshape(-1)))
        stored = [fmt.code(planes.q)] if planes.d is None else [planes.d]
        if planes.dmin is not None:
            stored.append(planes.dmin)
        found += sum(int(np.count_nonzero(~np.isfinite(values))) for values in stored)
    return found
