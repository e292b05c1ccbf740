"""From logits to what is counted of a token: its negative log-likelihood, and how far two models are apart there.

Sums run in blocks of rows that fit the processor's cache. Logits are float32, which is what models give; likelihoods
are sums in float64, and divergences are float64 throughout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from octavo.evals.stats import F64
from octavo.formats.spec import F32

BLOCK_BYTES = 1 << 20

Floats = TypeVar("Floats", F32, F64)


def _blocks(rows: int, width: int) -> Iterator[slice]:
    size = max(1, BLOCK_BYTES // (4 * width))
    return (slice(i, i + size) for i in range(0, rows, size))


def _log_sum_exp(logits: Floats) -> tuple[Floats, Floats, F64]:
    """Largest logit [n, 1] of each row, exp(logits - largest), and the logarithm of that one's sum [n]."""
    top = logits.max(axis=1, keepdims=True)
    e = np.exp(logits - top)
    return top, e, np.log(e.sum(axis=1, dtype=np.float64))


def negative_log_likelihoods(logits: F32, targets: npt.NDArray[np.int64]) -> F64:
    """-log softmax(logits [n, V])[targets [n]] in nats: float64 [n]."""
    out = np.empty(len(logits))
    for block in _blocks(*logits.shape):
        part = logits[block]
        top, _, log_sum = _log_sum_exp(part)
        out[block] = log_sum + top[:, 0] - part[np.arange(len(part)), targets[block]]
    return out


@dataclass(frozen=True, eq=False)
class Comparison:
    """Of tokens, float64 [n]: negative log-likelihoods of two models, the KL divergence, and whether the tops agree."""

    nll: F64
    nll_base: F64
    kl: F64
    same_top: npt.NDArray[np.bool_]

    @classmethod
    def join(cls, parts: list[Comparison]) -> Comparison:
        """The comparisons of several windows as one."""
        names = ("nll", "nll_base", "kl", "same_top")
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def compare(logits: F32, base: F32 | F64, targets: npt.NDArray[np.int64]) -> Comparison:
    """Two models' logits [n, V] for the same tokens: KL(base || model) = sum p_base (log p_base - log p)."""
    n = len(targets)
    found = Comparison(np.empty(n), np.empty(n), np.empty(n), np.empty(n, bool))
    for block in _blocks(*logits.shape):
        x, y, at = logits[block].astype(np.float64), base[block].astype(np.float64), targets[block]
        rows = np.arange(len(x))
        x_top, _, x_log_sum = _log_sum_exp(x)
        y_top, p, y_log_sum = _log_sum_exp(y)
        x_total, y_total = x_log_sum + x_top[:, 0], y_log_sum + y_top[:, 0]
        # The tops are taken out of the difference, so that a shift of all logits costs no digits.
        gap = np.einsum("nv,nv->n", p, (y - y_top) - (x - x_top)) / np.exp(y_log_sum)
        found.nll[block] = x_total - x[rows, at]
        found.nll_base[block] = y_total - y[rows, at]
        found.kl[block] = np.maximum(gap - y_log_sum + x_log_sum, 0)
        found.same_top[block] = x.argmax(axis=1) == y.argmax(axis=1)
    return found
