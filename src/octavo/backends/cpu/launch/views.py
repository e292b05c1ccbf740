"""Views of memory that calls read and write later."""

from __future__ import annotations

import numpy as np

from octavo.formats.spec import AnyArray


def reshaped(array: AnyArray, *shape: int) -> AnyArray:
    """The same memory in another shape. Raises ValueError where that takes a copy, which would never be computed."""
    found = array.reshape(shape)
    if found.size and not np.may_share_memory(found, array):
        raise ValueError(f"an array of {array.shape} with gaps has no view of {shape}")
    return found
