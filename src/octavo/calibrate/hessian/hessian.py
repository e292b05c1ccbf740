"""Hessians: the mean of x x^T over the inputs x of a product, by which an error in its weights is weighed.

The mean squared error of a product's outputs, when its weights W [N, K] become W + E, is the trace of E H E^T with
H [K, K] the mean of x x^T. GPTQ (arXiv 2210.17323) calls H the Hessian and leaves out the factor 2.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from octavo.calibrate.hessian.damping import LARGEST_DOUBLE, Matrix
from octavo.errors import NonFiniteError, UsageError
from octavo.formats.spec import F32, AnyArray
from octavo.quantizers.matrix_tiles import TILE, run_tiles, spans

TOKENS = 2048
"""Vectors whose products are added up in float32 before they come to the sum."""
FEW = 4
"""With fewer tiles than this, threads also divide the tokens, into this many parts."""


class Hessian:
    """A sum of x x^T over vectors x [K], kept as its upper half.

    size   K
    name   of the tensor that is given them, for errors
    dtype  of the sum (default: float64 up to LARGEST_DOUBLE, float32 beyond)

    The same vectors in the same calls give the same bytes, whatever the number of threads.
    """

    def __init__(self, size: int, name: str = "", dtype: npt.DTypeLike | None = None) -> None:
        self.name, self.tokens = name, 0
        self._sum: Matrix = np.zeros((size, size), _dtype(size, dtype))

    @property
    def size(self) -> int:
        return len(self._sum)

    def add(self, x: F32) -> None:
        """Count vectors x, float32 [T, K].

        Raises NonFiniteError where they hold NaN or Inf, or their squares add up to more than float32 holds.
        """
        _require_vectors(x, self.name, self.size)
        _add_products(self._sum, x, x, upper=True)
        _require_finite(self._sum.diagonal(), self.name)
        self.tokens += len(x)

    @classmethod
    def of(cls, matrix: Matrix, tokens: int, name: str = "") -> Self:
        """The Hessian whose mean over `tokens` vectors is `matrix` [K, K], of which the upper half is read."""
        made = cls(len(matrix), name, matrix.dtype)
        made._sum[...] = np.triu(matrix) * tokens
        made.tokens = tokens
        return made

    def matrix(self) -> Matrix:
        """The mean of x x^T, [K, K], symmetric; zeros where nothing was counted."""
        mean: Matrix = self._sum / max(self.tokens, 1)
        run_tiles(
            partial(_mirror, mean, i, j) for i in spans(self.size) for j in spans(self.size) if j.start >= i.start
        )
        return mean

    def diagonal(self) -> npt.NDArray[np.float64]:
        """Mean squares of the channels, float64 [K]: what an importance matrix has."""
        return self._sum.diagonal().astype(np.float64) / max(self.tokens, 1)


class CrossHessian:
    """Sums of y y^T and y x^T over pairs of vectors: what a quantized and the original model give a product.

    `hessian` is that of y, the quantized model's. Qronos (arXiv 2505.11695) corrects weights for the difference.
    """

    def __init__(self, size: int, name: str = "", dtype: npt.DTypeLike | None = None) -> None:
        self.hessian = Hessian(size, name, dtype)
        self._sum: Matrix = np.zeros((size, size), _dtype(size, dtype))

    @property
    def tokens(self) -> int:
        return self.hessian.tokens

    def add(self, quantized: F32, original: F32) -> None:
        """Count pairs of vectors, float32 [T, K] each. Raises NonFiniteError where they hold NaN or Inf."""
        _require_vectors(original, self.hessian.name, self.hessian.size)
        _require_finite(original, self.hessian.name)
        self.hessian.add(quantized)
        _add_products(self._sum, quantized, original, upper=False)

    def cross(self) -> Matrix:
        """The mean of y x^T, [K, K]: rows are channels of the quantized model's vectors."""
        mean: Matrix = self._sum / max(self.tokens, 1)
        return mean


def _dtype(size: int, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    if size < 1:
        raise UsageError(f"a product of {size} inputs (allowed: 1 or more)")
    found = np.dtype((np.float64 if size <= LARGEST_DOUBLE else np.float32) if dtype is None else dtype)
    if found not in (np.float32, np.float64):
        raise UsageError(f"sums in {found} (allowed: float32, float64)", argument="dtype")
    return found


def _require_vectors(x: F32, name: str, size: int) -> None:
    if x.ndim != 2 or x.shape[1] != size:
        raise UsageError(f"{name}: vectors {list(x.shape)} for a Hessian of {size} inputs (allowed: [T, {size}])")


def _require_finite(x: AnyArray, name: str) -> None:
    if not np.isfinite(x).all():
        raise NonFiniteError(f"the model computed NaN or Inf in what {name} is given")


def _add_products(total: Matrix, x: F32, y: F32, *, upper: bool) -> None:
    """Add x^T y of x, y [T, K] to total [K, K]; with `upper` only tiles that are not below the diagonal.

    Where these are few, threads share the tokens as well: products of parts are made together, and added in order.
    """
    tiles = [(i, j) for i in spans(len(total)) for j in spans(len(total)) if j.start >= i.start or not upper]
    parts = spans(len(x), TOKENS)
    if len(tiles) >= FEW:
        run_tiles(partial(_add_tile, total, x, y, i, j, parts) for i, j in tiles)
        return
    for first in range(0, len(parts), FEW):
        some = [(part, i, j) for part in parts[first : first + FEW] for i, j in tiles]
        made = np.empty((len(some), TILE, TILE), np.float32)
        run_tiles(partial(_make_tile, made[n], x[part], y[part], i, j) for n, (part, i, j) in enumerate(some))
        for product, (_, i, j) in zip(made, some, strict=True):
            into = total[i, j]
            into += product[: into.shape[0], : into.shape[1]]


def _add_tile(total: Matrix, x: F32, y: F32, i: slice, j: slice, parts: list[slice]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # callers check the sums for NaN and Inf
        for part in parts:
            total[i, j] += x[part, i].T @ y[part, j]


def _make_tile(made: F32, x: F32, y: F32, i: slice, j: slice) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        product = x[:, i].T @ y[:, j]
    made[: len(product), : product.shape[1]] = product


def weighed(rows: F32, hessian: Matrix) -> npt.NDArray[np.float64]:
    """The mean square of what a product with each of some rows [N, K] gives, float64 [N], by a Hessian [K, K]."""
    out = np.empty(len(rows))
    run_tiles(partial(_weigh, rows[part], hessian, out[part]) for part in spans(len(rows)))
    return out


def _weigh(rows: F32, hessian: Matrix, out: npt.NDArray[np.float64]) -> None:
    np.multiply(rows @ hessian, rows).sum(axis=1, dtype=np.float64, out=out)


def _mirror(mean: Matrix, i: slice, j: slice) -> None:
    if i == j:
        mean[i, i] = np.triu(mean[i, i]) + np.triu(mean[i, i], 1).T
    else:
        mean[j, i] = mean[i, j].T
