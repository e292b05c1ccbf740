"""Who shares a scale, and what that costs: for integer quantization of plain arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from octavo.errors import QuantFormatError, UsageError
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32, AnyArray

Per = Literal["tensor", "channel", "group"]
"""A scale for all values, for each row (an output channel of a matrix [N, K]), or for `group` neighbours in a row."""


@dataclass(frozen=True)
class Storage:
    """What a quantized array takes.

    nbytes           of codes, scales and zero points together
    bytes_per_value  nbytes over the number of values
    compression      bytes of the same values in float32, over nbytes
    """

    nbytes: int
    bytes_per_value: float
    compression: float


def storage(codes: AnyArray, *others: AnyArray) -> Storage:
    """The storage of codes, one a value, and of what lies beside them."""
    nbytes = codes.nbytes + sum(a.nbytes for a in others)
    values = max(1, codes.size)
    return Storage(nbytes, nbytes / values, 4 * codes.size / max(1, nbytes))


def grouped(x: npt.ArrayLike, per: Per, group: int) -> F32:
    """Finite values as [*groups, values that share a scale], float32. `group` counts only where `per` is "group"."""
    values = np.ascontiguousarray(x, dtype=np.float32)
    if per not in get_args(Per):
        raise UsageError(f"per is {per!r} (allowed: {', '.join(get_args(Per))})")
    if np.ndim(x) == 0 or not values.size:
        raise QuantFormatError(f"values of shape {np.shape(x)} (allowed: one dimension or more, none of them empty)")
    require_finite(values, "values")
    if per == "tensor":
        return values.reshape(-1)
    if per == "channel":
        return values
    if group < 1 or values.shape[-1] % group:
        raise UsageError(f"group is {group} for rows of {values.shape[-1]} values (allowed: what divides them)")
    return values.reshape(*values.shape[:-1], values.shape[-1] // group, group)


def spread(per_group: AnyArray, shape: tuple[int, ...]) -> AnyArray:
    """Scales [*groups] so that they broadcast over codes of `shape`."""
    if per_group.ndim == 0:
        return per_group
    if per_group.ndim == len(shape):
        return np.repeat(per_group, shape[-1] // per_group.shape[-1], axis=-1)
    return per_group[..., None]
