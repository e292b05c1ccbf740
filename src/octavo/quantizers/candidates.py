"""What types a tensor may be given under a budget, with the bytes and the error of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from octavo.formats import BlockFormat, QTensor, by_name
from octavo.formats.spec import F32
from octavo.quantizers.budget import Candidate
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.recode import recode
from octavo.quantizers.source import SourceTensor

TYPES = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
TYPES_OF_32 = ("Q4_0", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0")
"""Of rows that are not whole blocks of 256."""

SAMPLE = 1 << 20
"""Values of a tensor that its errors are measured on; rows evenly spaced."""


def candidates(
    tensors: Iterable[SourceTensor],
    slopes: Mapping[str, float],
    *,
    imatrix: Imatrix | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[Candidate]]:
    """For each tensor the types that fit its rows; losses are its slope times the type's relative squared error.

    slopes    what a relative squared error of 1 costs, by tensor: `Sensitivity.slope`, or 1 where nothing is known
    imatrix   weighs the errors
    progress  is told how many tensors are done
    """
    found: dict[str, list[Candidate]] = {}
    for tensor in tensors:
        loaded = tensor.load()
        importance = None if imatrix is None else imatrix.importance(tensor.name, tensor.shape)
        sample, weights = sampled(loaded, importance)
        found[tensor.name] = [
            Candidate(
                fmt.name, _nbytes(tensor, fmt), slopes.get(tensor.name, 1.0) * _error(sample, fmt, weights, threads)
            )
            for fmt in fitting(tensor.shape[-1])
        ]
        if progress is not None:
            progress(len(found))
    return found


def fitting(k: int) -> list[BlockFormat]:
    """The types for rows of `k` values, the smallest first; F16 where no block fits."""
    names = TYPES if k % 256 == 0 else TYPES_OF_32 if k % 32 == 0 else ("F16",)
    return [by_name(name) for name in names]


def sampled(tensor: QTensor, importance: F32 | None) -> tuple[QTensor, F32 | None]:
    """Some rows of the tensor, of each expert alike, and the importance of their columns."""
    *lead, n, k = tensor.shape
    experts = math.prod(lead)
    data = tensor.data.reshape(experts, n, -1)
    rows = np.unique(np.linspace(0, n - 1, max(1, min(n, SAMPLE // (k * experts)))).astype(np.int64))
    some = np.ascontiguousarray(data[:, rows])
    weights = importance if importance is None or not lead else importance.reshape(experts, k)
    if not lead:
        return QTensor(tensor.format, (len(rows), k), some[0], tensor.name), weights
    return QTensor(tensor.format, (experts, len(rows), k), some, tensor.name), weights


def _nbytes(tensor: SourceTensor, fmt: BlockFormat) -> int:
    return tensor.size // fmt.block * fmt.block_bytes


def _error(sample: QTensor, fmt: BlockFormat, weights: F32 | None, threads: int | None) -> float:
    return recode(sample, fmt, importance=weights, threads=threads).error ** 2
