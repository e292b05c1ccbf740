"""Hessians, their factors and statistics of channels where vectors are tensors of torch, on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from octavo.calibrate.hessian.damping import LARGEST_DOUBLE, Order, more_damping
from octavo.errors import NonFiniteError, UsageError
from octavo.quantizers.matrix_tiles import spans
from octavo.quantizers.statistics.channels import ChannelStatistics

TOKENS = 8192
"""Vectors whose products are added up in float32 before they come to the sum."""
PANEL = 2048
"""Rows of a sum that are added to at a time: what is below the diagonal is left out."""


@contextmanager
def rounded_factors() -> Iterator[None]:
    """Products of float32 take the first 11 bits of factors (TF32) where a GPU can; sums are float32."""
    library = torch.backends.cuda.matmul
    before, library.allow_tf32 = library.allow_tf32, True
    try:
        yield
    finally:
        library.allow_tf32 = before


class Products:
    """A float32 matrix A [M, J] in whose products with others sums run over some columns of it at a time.

    split  for tensor cores: each number is a sum of two of 11 bits, whose products are exact. A is kept as (upper,
           upper, lower) for each `block` columns, what it is multiplied with becomes (upper, lower, upper), and the
           product of both lower parts is left out: a part in 2^22
    """

    def __init__(self, a: Tensor, block: int, *, split: bool) -> None:
        self._block, self._times = block, 3 if split else 1
        self._a = a
        if split:
            high, low = _halves(a)
            self._a = torch.cat([p[:, c] for c in spans(a.shape[1], block) for p in (high, high, low)], 1)

    def factor(self, b: Tensor) -> Tensor:
        """B [j, N] as `add` takes it, of whole blocks or the last ones."""
        if self._times == 1:
            return b
        high, low = _halves(b)
        return torch.cat([part[rows] for rows in spans(len(b), self._block) for part in (high, low, high)])

    def add(self, total: Tensor, rows: slice, columns: slice, factor: Tensor) -> None:
        """Add A[rows, columns] B to total [rows, N], by B's factor."""
        part = self._a[rows, self._times * columns.start : self._times * columns.stop]
        with rounded_factors() if self._times > 1 else nullcontext():
            total.addmm_(part, factor)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The upper 11 bits of float32 numbers, and what is left."""
    high = (x.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)
    return high, x - high


class TorchHessian:
    """A sum of x x^T over vectors x [K] on a device, kept as its upper half; see `Hessian`.

    Tensor cores cut vectors off after 11 bits, so that the sum is the exact one, but for float32's rounding, of inputs
    that differ by a part in 1,024 at most; float64 up to LARGEST_DOUBLE inputs, float32 beyond.
    """

    def __init__(self, size: int, device: str, name: str = "") -> None:
        self.name, self.size, self.tokens = name, size, 0
        self._sum = torch.zeros((size, size), dtype=_dtype(size), device=device)

    def add(self, x: Tensor) -> None:
        """Count vectors x, float32 [T, K]."""
        for part in spans(len(x), TOKENS):
            _add_products(self._sum, x[part], x[part], upper=True)
        self.tokens += len(x)

    def matrix(self) -> Tensor:
        """The mean of x x^T, [K, K], symmetric; zeros where nothing was counted.

        Raises NonFiniteError where vectors held NaN or Inf, or squares were beyond float32.
        """
        _require_finite(self._sum.diagonal(), self.name)
        upper = torch.triu(self._sum).div_(max(self.tokens, 1))
        return upper + torch.triu(upper, 1).T


class TorchCross:
    """Sums of y y^T and y x^T over pairs of vectors on a device; see `CrossHessian`."""

    def __init__(self, size: int, device: str, name: str = "") -> None:
        self.hessian = TorchHessian(size, device, name)
        self._sum = torch.zeros_like(self.hessian._sum)

    @property
    def tokens(self) -> int:
        return self.hessian.tokens

    def add(self, quantized: Tensor, original: Tensor) -> None:
        """Count pairs of vectors, float32 [T, K] each."""
        for part in spans(len(original), TOKENS):
            _add_products(self._sum, quantized[part], original[part], upper=False)
        self.hessian.add(quantized)

    def cross(self) -> Tensor:
        """The mean of y x^T, [K, K]: rows are channels of the quantized model's vectors. Raises as `matrix` does."""
        _require_finite(self._sum, self.hessian.name)
        return self._sum / max(self.tokens, 1)


@dataclass(frozen=True, eq=False)
class TorchFactor:
    """H + damping * mean(diag H) * I = M^T D M on a device; see `Factor`."""

    order: Tensor
    m: Tensor
    weights: Tensor
    hessian: Tensor
    damping: float
    added: float
    _products: list[Products] = field(default_factory=list)

    @classmethod
    def of(cls, hessian: Tensor, order: Order, damp: float, *, keep: bool = True) -> Self:
        """The factor of `hessian` [K, K], as `factorize` finds it. Raises UsageError where there is none."""
        diagonal = hessian.diagonal()
        mean = float(diagonal.double().mean()) if bool(diagonal.any()) else 1.0
        natural = torch.arange(len(hessian), device=hessian.device)
        taken = torch.argsort(-diagonal, stable=True) if order == "act" else natural
        backwards, damping = taken.flip(0), damp
        while True:
            h = hessian[backwards][:, backwards].double()  # so that the factor is upper triangular, see `upper_root`
            h.diagonal().add_(damping * mean)
            lower, failed = torch.linalg.cholesky_ex(h)
            if not int(failed) and bool(torch.isfinite(lower.diagonal()).all()):
                break
            damping = more_damping(damping)
        del h
        own = lower.diagonal().clone()
        m = (lower / own).flip(0, 1).T.float().contiguous()  # unit lower triangular
        damped = hessian.to(torch.float32, copy=keep)
        damped.diagonal().add_(damping * mean)
        return cls(taken, m, own.flip(0) ** 2, damped, damping, damping * mean)

    def products(self, block: int) -> tuple[Products, Products]:
        """m and the Hessian as they are multiplied, some columns at a time; made once."""
        if not self._products:
            split = self.m.is_cuda and torch.version.cuda is not None
            self._products.extend(Products(a, block, split=split) for a in (self.m, self.hessian))
        first, second = self._products
        return first, second


def count(x: Tensor, found: ChannelStatistics, row: int | None = None) -> None:
    """Count vectors x, float32 [T, rows, K], or of one row [T, K]. Raises NonFiniteError for NaN and Inf."""
    x = x.reshape(len(x), -1).float()
    for part in spans(len(x), TOKENS):
        _require_finite(x[part], found.name)
        low, high = torch.aminmax(x[part], dim=0)
        size = x[part].abs()
        sums = torch.stack([x[part].sum(0, dtype=torch.float64), size.sum(0, dtype=torch.float64),
                            size.square_().sum(0, dtype=torch.float64)])
        found.count(len(x[part]), row, sums.cpu().numpy(), low.cpu().numpy(), high.cpu().numpy())


def absmax(batches: Iterable[Tensor], size: int, name: str) -> Tensor:
    """The largest magnitude of each channel of vectors [T, K], float32 [K]. Raises NonFiniteError for NaN and Inf."""
    most: Tensor | None = None
    for x in batches:
        low, high = torch.aminmax(x, dim=0)
        here = torch.maximum(low.neg(), high)
        most = here if most is None else torch.maximum(most, here)
    found = torch.zeros(size) if most is None else most
    _require_finite(found, name)
    return found


def _dtype(size: int) -> torch.dtype:
    if size < 1:
        raise UsageError(f"a product of {size} inputs (allowed: 1 or more)")
    return torch.float64 if size <= LARGEST_DOUBLE else torch.float32


def _require_finite(x: Tensor, name: str) -> None:
    if not bool(torch.isfinite(x).all()):
        raise NonFiniteError(f"the model computed NaN or Inf in what {name} is given")


def _add_products(total: Tensor, x: Tensor, y: Tensor, *, upper: bool) -> None:
    """Add x^T y of x, y [T, K] to total [K, K]; with `upper` little of what is below the diagonal."""
    with rounded_factors():
        for rows in spans(len(total), PANEL):
            first = rows.start if upper else 0
            total[rows, first:] += x[:, rows].T @ y[:, first:]
