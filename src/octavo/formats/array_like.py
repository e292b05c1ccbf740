"""What NumPy's functions do with arrays alone, for arrays and for what stands for one on a device."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

AnyArray = npt.NDArray[Any]


def contiguous(a: AnyArray) -> AnyArray:
    """The array, or a copy whose values lie side by side."""
    return a if a.flags.c_contiguous else a.copy()


def look_up(table: AnyArray, index: Any) -> AnyArray:
    """Entries of a table [n, ...] by their numbers."""
    found: AnyArray = index.entries_of(table) if hasattr(index, "entries_of") else table[index]
    return found
