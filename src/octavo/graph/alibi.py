"""ALiBi: attention to what is far away loses, each head by a slope of its own (arXiv 2108.12409)."""

from __future__ import annotations

import numpy as np

from octavo.formats.spec import F32


def alibi_slopes(heads: int, most: float) -> F32:
    """What the scores of each head lose for each position between query and key, float32 [heads].

    2^(-most (h + 1) / n) for the first n heads, a power of two, and 2^(-most (h - n + 1/2) / n) for those after them.
    """
    n = 1 << heads.bit_length() - 1
    h = np.arange(heads)
    return np.exp2(-most / n * np.where(h < n, h + 1, h - n + 0.5)).astype(np.float32)
