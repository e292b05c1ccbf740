"""Leading dimensions: activations [..., K] are rows to a product, and what belongs to rows has their dimensions."""

from __future__ import annotations

from math import prod
from typing import Any

from octavo.errors import UsageError


class Leading:
    """The dimensions [...] of activations [..., K]. Raises UsageError for those without any dimension."""

    def __init__(self, name: str, x: Any) -> None:
        if x.ndim == 0:
            raise UsageError(f"{name} has no dimensions, but must be [..., K]")
        self.shape = tuple(x.shape[:-1])
        self.rows = prod(self.shape)

    def flat(self, x: Any) -> Any:
        """What belongs to rows, [...] or [..., n], as [rows] or [rows, n]; anything else stays as it is."""
        depth = len(self.shape)
        if depth == 1 or x is None or tuple(x.shape[:depth]) != self.shape or not depth <= x.ndim <= depth + 1:
            return x
        return x.reshape(self.rows) if x.ndim == depth and depth else x.reshape(self.rows, *x.shape[depth:])

    def restored(self, y: Any) -> Any:
        """[rows, n] as [..., n]; anything else stays as it is."""
        return y if len(self.shape) == 1 or y.ndim != 2 else y.reshape(*self.shape, y.shape[-1])
