"""What Hessians and their factors share on the host and on a device."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.errors import UsageError

Matrix = npt.NDArray[np.floating[Any]]
Order = Literal["act", "natural"]

MOST_DAMPING = 1.0
LARGEST_DOUBLE = 8192
"""Inputs of a product up to which sums are float64; beyond it they would take more than 512 MiB."""


def more_damping(damping: float) -> float:
    """What to try where there is no factor with `damping`. Raises UsageError where that was enough."""
    damping = max(10 * damping, 1e-6)
    if damping > MOST_DAMPING:
        raise UsageError("hessian is not positive semidefinite (allowed: sums of x x^T)") from None
    return damping
