"""What types a tensor may be given under a budget, with the bytes and the error of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from octavo.errors import UsageError, shown
from octavo.formats import BlockFormat, QTensor, by_name
from octavo.formats.spec import F32
from octavo.quantizers.encoding.encoder import ENCODABLE
from octavo.quantizers.fit.size_budget import Candidate
from octavo.quantizers.imatrix.imatrix import Imatrix
from octavo.quantizers.job.job_source import ModelSource, SourceTensor
from octavo.quantizers.job.recode import recode
from octavo.quantizers.mix.mixing import Choices, fallback, is_kept, require_matches, target_format

TYPES = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
GRIDS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
"""Types for tensors with importance weights, without which all but the last are of no use."""
TYPES_OF_32 = ("Q4_0", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0")
"""Types for rows that are not whole blocks of 256."""

SAMPLE = 1 << 18
"""Values of a tensor that its errors are measured on; rows evenly spaced."""

Offers = dict[str, list[BlockFormat]]
"""Types that each tensor may be given."""


def offers(source: ModelSource, choices: Choices, imatrix: Imatrix | None = None, least_bits: float = 0) -> Offers:
    """The types, smallest first, of each tensor of `source` that `choices` let change; one where they set it.

    A tensor may also stay as it is stored, and gets no type that takes more. Where `imatrix` has its importances, GRIDS
    of at least `least_bits` are offered too. Raises UsageError for a choice that is not a type or doesn't fit a row.
    """
    require_matches(choices, [tensor.name for tensor in source.tensors])
    tied = "output.weight" not in {tensor.name for tensor in source.tensors}
    found: Offers = {}
    for tensor in source.tensors:
        if not is_kept(tensor.name, tensor.shape, choices):
            wish = _wish(tensor, choices, tied)
            weighted = imatrix is not None and imatrix.importance(tensor.name, tensor.shape) is not None
            found[tensor.name] = [wish] if wish else _fitting(tensor, least_bits if weighted else math.inf)
    return found


def candidates(
    tensors: Iterable[SourceTensor],
    offered: Offers,
    slopes: Mapping[str, float],
    *,
    imatrix: Imatrix | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, list[Candidate]]:
    """What each offered type takes and loses: the tensor's slope times the relative squared error of the type.

    slopes    what a relative squared error of 1 costs, by tensor
    imatrix   weighs the errors
    progress  is told the name of each tensor before it is measured
    """
    found: dict[str, list[Candidate]] = {}
    for tensor in tensors:
        if progress is not None:
            progress(tensor.name)
        loaded = tensor.load()
        importance = None if imatrix is None else imatrix.importance(tensor.name, tensor.shape)
        sample, weights = sampled(loaded, importance)
        slope = slopes[tensor.name]
        found[tensor.name] = [
            Candidate(fmt.name, type_bytes(tensor, fmt), slope * _error(tensor, sample, fmt, weights, threads))
            for fmt in offered[tensor.name]
        ]
    return found


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


def type_bytes(tensor: SourceTensor, fmt: BlockFormat) -> int:
    """What the tensor takes in a format."""
    return tensor.size // fmt.block * fmt.block_bytes


def _wish(tensor: SourceTensor, choices: Choices, tied: bool) -> BlockFormat | None:
    """The type that a user set for a tensor, if any."""
    name = tensor.name
    if name == "token_embd.weight" and choices.embedding_type:
        return _whole(tensor, target_format(choices.embedding_type))
    if name == "output.weight" and choices.output_type:
        return _whole(tensor, target_format(choices.output_type))
    wish = next((fmt for pattern, fmt in choices.patterns if pattern.search(name)), None)
    if wish is not None:
        return fallback(wish, tensor.shape[-1])
    if name == "token_embd.weight" and tied and choices.output_type:
        return _whole(tensor, target_format(choices.output_type))
    return None


def _whole(tensor: SourceTensor, fmt: BlockFormat) -> BlockFormat:
    if tensor.shape[-1] % fmt.block:
        problem = f"tensor {shown(tensor.name)}: rows of {tensor.shape[-1]} values do not fit {fmt.name}"
        raise UsageError(f"{problem}, blocks of {fmt.block}")
    return fmt


def _fitting(tensor: SourceTensor, least_bits: float) -> list[BlockFormat]:
    """The types, those of GRIDS among them that have `least_bits`."""
    k = tensor.shape[-1]
    names = TYPES if k % 256 == 0 else TYPES_OF_32 if k % 32 == 0 else ("F16",)
    formats = [by_name(name) for name in names]
    if k % 256 == 0:
        grids = [fmt for fmt in map(by_name, GRIDS) if fmt.bits_per_weight >= least_bits]
        formats = sorted([*grids, *formats], key=lambda fmt: fmt.bits_per_weight)
    if tensor.type_name not in ENCODABLE:
        return formats
    smaller = [fmt for fmt in formats if type_bytes(tensor, fmt) < tensor.nbytes]
    return [*smaller, by_name(tensor.type_name)]


def _error(tensor: SourceTensor, sample: QTensor, fmt: BlockFormat, weights: F32 | None, threads: int | None) -> float:
    if fmt.name == tensor.type_name:
        return 0.0
    return recode(sample, fmt, importance=weights, threads=threads).error ** 2
