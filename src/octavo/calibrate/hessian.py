"""Hessians: the mean of x x^T over the inputs x of a product, and the triangular factor that GPTQ goes by.

The mean squared error of a product's outputs, when its weights W [N, K] become W + E, is the trace of E H E^T with
H [K, K] the mean of x x^T. GPTQ (arXiv 2210.17323) calls H the Hessian and leaves out the factor 2.

On the host the same vectors in the same calls give the same bytes, whatever the number of threads. On a device tensor
cores cut vectors off after 11 bits, so that a sum is the exact one, but for float32's rounding, of inputs that differ
by a part in 1,024 at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.calibrate import arrays
from octavo.calibrate.arrays import VALUES, is_tensor, on_host, rounded_factors
from octavo.calibrate.row_batches import made_in_parts
from octavo.errors import NonFiniteError, UsageError
from octavo.formats.spec import F32
from octavo.quantizers.matrix_tiles import TILE, run_tiles, spans
from octavo.quantizers.statistics import ChannelStatistics

Matrix = npt.NDArray[np.floating[Any]]
Order = Literal["act", "natural"]

TOKENS = 2048
"""Vectors whose products are added up in float32 before they come to the sum."""
FEW = 4
"""With fewer tiles than this, threads also divide the tokens, into this many parts."""
PANEL = 2048
"""Rows of a sum on a device that are added to at a time: what is below the diagonal is left out."""
LARGEST_DOUBLE = 8192
"""Inputs of a product up to which sums are float64; beyond it they would take more than 512 MiB."""
MOST_DAMPING = 1.0


class Hessian:
    """A sum of x x^T over vectors x [K], kept as its upper half.

    size    K
    name    of the tensor that is given them, for errors
    double  sums are float64 (default: up to LARGEST_DOUBLE, float32 beyond)
    device  what torch calls the device on which vectors lie; None: the host
    kept    the share of what is beside the diagonal that `matrix` gives, see `agreement`
    """

    def __init__(self, size: int, name: str = "", double: bool | None = None, device: str | None = None) -> None:
        if size < 1:
            raise UsageError(f"a product of {size} inputs (allowed: 1 or more)")
        self.name, self.size, self.tokens, self.kept = name, size, 0, 1.0
        self._whole: list[tuple[Any, Any]] = []
        self._sum = arrays.zeros((size, size), size <= LARGEST_DOUBLE if double is None else double, device)

    def add(self, x: Any) -> None:
        """Count vectors x, float32 [T, K].

        Raises NonFiniteError where they hold NaN or Inf, or their squares add up to more than float32 holds.
        """
        _require_vectors(x, self.name, self.size)
        _add_products(self._sum, x, x, upper=True)
        _require_finite(self._sum.diagonal(), self.name)
        self.tokens += len(x)

    def matrix(self) -> Any:
        """The mean of x x^T, [K, K], symmetric; zeros where nothing was counted."""
        mean = self._with_whole(_shrunk(self._sum / max(self.tokens, 1), self.kept), upper=True)
        run_tiles(
            partial(_mirror, mean, i, j) for i in spans(self.size) for j in spans(self.size) if j.start >= i.start
        )
        return mean

    def add_whole(self, x: Any, y: Any | None = None) -> None:
        """Count vectors x, and y beside them, [T, K] each, whatever `kept` is: those that a text has few of.

        Where their squares add up to more than those of all others they are weighed down to these: codes would be good
        for a few first tokens alone that are hundreds of times as long.
        """
        for each in (x,) if y is None else (x, y):
            _require_vectors(each, self.name, self.size)
            _require_finite((each * each).sum(0), self.name)
        if y is not None and len(y) != len(x):
            raise UsageError(f"{self.name}: {len(y)} vectors beside {len(x)} (allowed: as many)")
        self._whole.append((x, x if y is None else y))
        self.tokens += len(x)

    def _with_whole(self, mean: Any, *, upper: bool) -> Any:
        """A mean with the vectors that count whole; with `upper` by themselves, else beside the others."""
        share = self._share_of_whole() / max(self.tokens, 1)
        for x, y in self._whole:
            _add_products(mean, x * share, x if upper else y, upper=upper)
        return mean

    def _share_of_whole(self) -> float:
        """What vectors that count whole count, 1 at most."""
        long = sum(float((arrays.double(x) ** 2).sum()) for x, _ in self._whole)
        others = float(on_host(self._sum.diagonal()).sum(dtype=np.float64))
        return min(1.0, others / long) if others and long else 1.0

    def diagonal(self) -> npt.NDArray[np.float64]:
        """The diagonal of `matrix`, float64 [K]: mean squares of the channels."""
        squares = (on_host((arrays.double(x) ** 2).sum(0)) for x, _ in self._whole)
        whole = sum(squares, np.zeros(self.size))
        own = on_host(self._sum.diagonal()).astype(np.float64)
        return (own + self._share_of_whole() * whole) / max(self.tokens, 1)


class CrossHessian:
    """Sums of y y^T and y x^T over pairs of vectors: what a quantized and the original model give a product.

    `hessian` is that of y, the quantized model's. Qronos (arXiv 2505.11695) corrects weights for the difference.
    """

    def __init__(self, size: int, name: str = "", device: str | None = None) -> None:
        self.hessian = Hessian(size, name, device=device)
        self._sum = arrays.of(self.hessian._sum).zeros_like(self.hessian._sum)

    @property
    def tokens(self) -> int:
        return self.hessian.tokens

    def add(self, quantized: Any, original: Any) -> None:
        """Count pairs of vectors, float32 [T, K] each. Raises NonFiniteError where they hold NaN or Inf."""
        _require_vectors(original, self.hessian.name, self.hessian.size)
        _require_finite(original, self.hessian.name)
        self.hessian.add(quantized)
        _add_products(self._sum, quantized, original, upper=False)

    def cross(self) -> Any:
        """The mean of y x^T, [K, K]: rows are channels of the quantized model's vectors."""
        return self.hessian._with_whole(_shrunk(self._sum / max(self.tokens, 1), self.hessian.kept), upper=False)


def _shrunk(mean: Any, kept: float) -> Any:
    """A matrix with a share of what is beside its diagonal, in its place."""
    if kept < 1:
        diagonal = mean.diagonal() + 0.0
        mean *= kept
        _diagonal(mean)[:] = diagonal
    return mean


def agreement(first: Hessian, second: Hessian) -> float:
    """The share of correlations in two halves of a text that both have: what a Hessian of few tokens is to be trusted.

    Correlations R of T tokens of K channels are off by some 1 / sqrt(T) each, and there are K^2 of them: with ten times
    as many tokens as channels GPTQ makes up for much that other text does not have. Of the sum of both halves the best
    multiple, for other text, is <R1, R2> / |(R1 + R2) / 2|^2, as errors of the halves are independent (the shrinkage
    of Ledoit and Wolf, 2004, towards the diagonal, with the error measured). 1 where there is nothing to go by.
    """
    if not first.tokens or not second.tokens:
        return 1.0
    one, two = (on_host(half.matrix()).astype(np.float64) for half in (first, second))
    scale = np.sqrt((np.diag(one) + np.diag(two)) / 2)
    over = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    one, two = (half * over[:, None] * over for half in (one, two))
    np.fill_diagonal(one, 0)
    np.fill_diagonal(two, 0)
    whole = float(np.square(one + two).sum()) / 4
    return min(1.0, max(0.0, float(np.vdot(one, two)) / whole)) if whole else 1.0


def _require_vectors(x: Any, name: str, size: int) -> None:
    if x.ndim != 2 or x.shape[1] != size:
        raise UsageError(f"{name}: vectors {list(x.shape)} for a Hessian of {size} inputs (allowed: [T, {size}])")


def _require_finite(x: Any, name: str) -> None:
    if not bool(arrays.of(x).isfinite(x).all()):
        raise NonFiniteError(f"the model computed NaN or Inf in what {name} is given")


def _add_products(total: Any, x: Any, y: Any, *, upper: bool) -> None:
    """Add x^T y of x, y [T, K] to total [K, K]; with `upper` little or nothing of what is below the diagonal.

    On the host only tiles are that are not below it. Where these are few, threads share the tokens as well: products of
    parts are made together, and added in order.
    """
    if is_tensor(total):
        with rounded_factors():
            for rows in spans(len(total), PANEL):
                first = rows.start if upper else 0
                total[rows, first:] += x[:, rows].T @ y[:, first:]
        return
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


def _mirror(mean: Any, i: slice, j: slice) -> None:
    if i == j:
        upper = arrays.of(mean).triu
        mean[i, i] = upper(mean[i, i]) + upper(mean[i, i], 1).T
    else:
        mean[j, i] = mean[i, j].T


def weighed(rows: Any, hessian: Any) -> Any:
    """The mean square of what a product with each of some rows [N, K] gives, [N], by a Hessian [K, K]: float64."""
    if is_tensor(rows):
        return ((rows @ hessian.float()) * rows).sum(1).double()
    out = np.empty(len(rows))
    run_tiles(partial(_weigh, rows[part], hessian, out[part]) for part in spans(len(rows)))
    return out


def _weigh(rows: F32, hessian: Matrix, out: npt.NDArray[np.float64]) -> None:
    np.multiply(rows @ hessian, rows).sum(axis=1, dtype=np.float64, out=out)


def absmax(batches: Iterable[Any], size: int, name: str) -> F32:
    """The largest magnitude of each channel of vectors [T, K], float32 [K]. Raises NonFiniteError for NaN and Inf."""
    most = np.zeros(size, np.float32)
    for x in batches:
        xp = arrays.of(x)
        np.maximum(most, on_host(xp.maximum(xp.amax(x, 0), -xp.amin(x, 0))), out=most)
    _require_finite(most, name)
    return most


def count(found: ChannelStatistics, x: Any, row: int | None = None) -> None:
    """Count vectors x, float32 [T, rows, K], or of one row [T, K]. Raises NonFiniteError for NaN and Inf."""
    if not is_tensor(x):
        found.add(np.asarray(x, np.float32), row)
        return
    xp, x = arrays.of(x), x.reshape(len(x), -1).float()
    _require_finite(x, found.name)
    sums = [each.sum(0, dtype=xp.float64) for each in (x, x.abs(), x.square())]
    found.count(len(x), row, *map(on_host, (xp.stack(sums), xp.amin(x, 0), xp.amax(x, 0))))


@dataclass(frozen=True, eq=False)
class Factor:
    """H + damping * mean(diag H) * I = M^T D M of columns in the order in which they are taken.

    order     int64 [K]
    m         float32 [K, K], unit lower triangular
    weights   float64 [K], D
    hessian   float32 [K, K], the damped one, columns as they lie
    damping   over the mean of the diagonal
    added     what was added to the diagonal
    prepared  what kernels make of these once, for all weights that share them
    """

    order: Any
    m: Any
    weights: Any
    hessian: Any
    damping: float
    added: float
    prepared: list[Any] = field(default_factory=list)


def factorize(hessian: Any, order: Order, damp: float, *, keep: bool = True) -> Factor:
    """The factor of `hessian` [K, K], where that lies, columns with the largest diagonal first or as they lie.

    keep  False: `hessian` is not needed afterwards, and its memory may become the factor's

    Where there is none, damping is multiplied by 10, up to MOST_DAMPING. Raises UsageError where there is none even so:
    far from positive semidefinite. Beside the hessian it needs memory for another one, then for m in float32.
    """
    diagonal = on_host(hessian.diagonal()).copy()
    mean = float(diagonal.mean()) if diagonal.any() else 1.0
    taken = np.argsort(-diagonal, kind="stable") if order == "act" else np.arange(len(hessian))
    damping, backwards = damp, arrays.like(taken[::-1].copy(), hessian)
    while (lower := _root(hessian[backwards[:, None], backwards], damping * mean)) is None:
        damping = max(10 * damping, 1e-6)
        if damping > MOST_DAMPING:
            raise UsageError("hessian is not positive semidefinite, as a sum of x x^T is")
    lower = _mirrored(lower)
    own = lower.diagonal() + 0.0
    lower /= own[:, None]
    m = arrays.single(lower)
    del lower
    damped: Any
    if is_tensor(hessian):
        damped = hessian.to(m.dtype, copy=keep)
    else:
        damped = np.array(hessian, np.float32, copy=True if keep else None)
    _diagonal(damped)[:] = arrays.like(diagonal + damping * mean, damped)
    weights = own.double() if is_tensor(own) else own.astype(np.float64)
    return Factor(arrays.like(taken.astype(np.int64), hessian), m, weights**2, damped, damping, damping * mean)


def _root(h: Any, added: float) -> Any:
    """L with L L^T = h with something added to its diagonal, lower triangular; None where there is none."""
    if is_tensor(h):
        h = h.double()
        _diagonal(h)[:] += added
        lower, failed = arrays.of(h).linalg.cholesky_ex(h)
        return None if int(failed) or not bool(lower.diagonal().isfinite().all()) else lower
    _diagonal(h)[:] += added
    try:
        _cholesky(h)
    except np.linalg.LinAlgError:
        return None
    return h


def _mirrored(a: Any) -> Any:
    """J a^T J of a lower triangular a [K, K], with J the order reversed, in a's place where that can be: lower
    triangular as well, of which a[i, j] was a[K - 1 - j, K - 1 - i]."""
    if is_tensor(a):
        return a.flip(0, 1).T.contiguous()
    parts = _even_spans(len(a))
    last = len(parts) - 1
    run_tiles(partial(_swap, a, parts, i, j) for i in range(last + 1) for j in range(i + 1) if i + j <= last)
    return a


def _swap(a: Matrix, parts: list[slice], i: int, j: int) -> None:
    """Swap a tile with the one that it becomes."""
    last = len(parts) - 1
    one, other = a[parts[i], parts[j]], a[parts[last - j], parts[last - i]]
    kept = one[::-1, ::-1].T.copy()
    one[...] = other[::-1, ::-1].T.copy()
    other[...] = kept


def _even_spans(size: int) -> list[slice]:
    """0 to `size` in pieces that are as long backwards: of TILE, but for the one in the middle."""
    sides = (size - 1) // (2 * TILE)
    ends = [TILE * i for i in range(sides + 1)]
    bounds = [*ends, *(size - end for end in reversed(ends))]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def _cholesky(a: Matrix) -> list[Matrix]:
    """Replace a [K, K], whose lower half is read, by L with L L^T = a; inverses of L's blocks on the diagonal."""
    inverses: list[Matrix] = []
    panels = spans(len(a))
    for j in panels:
        run_tiles(partial(_subtract, a, i, j) for i in panels if i.start >= j.start)
        run_tiles([partial(_factor_block, a, j, inverses)])
        run_tiles(partial(_divide, a, i, j, inverses[-1]) for i in panels if i.start > j.start)
    return inverses


def _subtract(a: Matrix, i: slice, j: slice) -> None:
    """Take from a tile what the columns before it account for."""
    if j.start:
        a[i, j] -= a[i, : j.start] @ a[j, : j.start].T


def _factor_block(a: Matrix, j: slice, inverses: list[Matrix]) -> None:
    """Replace a block on the diagonal by its factor, and add that one's inverse to `inverses`."""
    block = np.linalg.cholesky(a[j, j])
    if not np.isfinite(block).all():
        raise np.linalg.LinAlgError("a block of the matrix has no finite factor")
    inverses.append(np.tril(np.linalg.inv(block)))
    a[j, j], a[j, j.stop :] = block, 0


def _divide(a: Matrix, i: slice, j: slice, inverse: Matrix) -> None:
    a[i, j] = a[i, j] @ inverse.T


def corrected(rows: Any, hessian: Any, cross: Any, damping: float) -> Any:
    """The weights [N, K] that give from quantized inputs, as nearly as can be, what `rows` give from the original ones.

    W* = W E[x x~^T] H^-1 (Qronos, arXiv 2505.11695); the damping holds them to W where there is little to go by.
    """
    if is_tensor(rows):
        damped, right = (x.to(dtype=arrays.of(x).float64, copy=True) for x in (hessian, cross))
    else:
        damped, right = np.array(hessian, np.float64), np.array(cross, np.float64)
    for matrix in (damped, right):
        _diagonal(matrix)[:] += damping
    if is_tensor(rows):
        solved = arrays.of(rows).linalg.solve(damped, right).T
        parts = spans(len(rows), max(1, VALUES // len(solved))) or [slice(0, 0)]
        return arrays.of(rows).cat(made_in_parts(parts, lambda part: (rows[part].double() @ solved).float()))
    aims = np.empty((len(right), len(rows)))
    run_tiles(partial(_multiply, right, rows[part], aims[:, part]) for part in spans(len(rows)))
    del right
    solve(damped, aims)
    return np.asarray(aims.T, np.float32)


def _multiply(right: Matrix, rows: F32, out: Matrix) -> None:
    out[...] = right @ rows.T


def _diagonal(a: Any) -> Any:
    """A matrix's diagonal, to write to."""
    return a.diagonal() if is_tensor(a) else np.einsum("ii->i", a)


def solve(a: Matrix, right: Matrix) -> None:
    """Replace right [K, N] by X with a X = right, for a symmetric positive definite a [K, K], in whose place its factor
    is then.

    Raises LinAlgError for another a. The same bytes whatever the number of threads.
    """
    inverses = _cholesky(a)
    run_tiles(partial(_substitute, a, inverses, right[:, columns]) for columns in spans(right.shape[1]))


def _substitute(lower: Matrix, inverses: list[Matrix], x: Matrix) -> None:
    """Replace x by what L L^T times gives it, block by block: first of L, then of L^T."""
    panels = list(zip(spans(len(lower)), inverses, strict=True))
    for j, inverse in panels:
        x[j] = inverse @ (x[j] - lower[j, : j.start] @ x[: j.start])
    for j, inverse in reversed(panels):
        x[j] = inverse.T @ (x[j] - lower[j.stop :, j].T @ x[j.stop :])
