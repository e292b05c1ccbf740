"""Types for a model of a wished size: what each tensor may be, what is lost, and the best choice."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.errors import UsageError
from octavo.formats import BlockFormat, by_name
from octavo.quantizers.budget import Candidate, choose
from octavo.quantizers.candidates import candidates
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.mixing import Choices, is_kept
from octavo.quantizers.source import Source

METADATA_BYTES = 1024
"""What quantizing adds to a file's metadata at most."""
ALIGNMENT = 32


@dataclass(frozen=True)
class Fit:
    """Types by tensor, the bytes of all of the model's tensors with them, and the loss that is expected."""

    types: dict[str, BlockFormat]
    nbytes: int
    loss: float


def fit_types(
    source: Source,
    nbytes: int,
    slopes: Mapping[str, float],
    *,
    imatrix: Imatrix | None = None,
    choices: Choices | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Fit:
    """The types with which the tensors of `source` take at most `nbytes` and lose the least.

    slopes   what a relative squared error of 1 costs, by tensor (see `evals.sensitivity`); where a tensor has none, 1
    imatrix  weighs the errors
    choices  types that are set; tensors that no preset changes stay as they are

    Raises UsageError for a size that the smallest types do not reach.
    """
    choices = choices or Choices()
    free = [t for t in source.tensors if not is_kept(t.name, t.shape, choices)]
    kept = source.nbytes - sum(t.nbytes for t in free)
    if nbytes < kept:
        raise UsageError(f"{nbytes:,} bytes for tensors of which {kept:,} stay as they are (allowed: more than these)")
    done = (lambda i: progress(i, len(free))) if progress is not None else None
    offered = candidates(free, slopes, imatrix=imatrix, threads=threads, progress=done)
    for name, options in offered.items():
        wish = _wish(name, choices)
        if wish is not None:
            offered[name] = [c for c in options if c.type_name == wish] or _refuse(name, wish, options)
    chosen = choose(offered, nbytes - kept)
    return Fit(
        {name: by_name(c.type_name) for name, c in chosen.items()},
        kept + sum(c.nbytes for c in chosen.values()),
        sum(c.loss for c in chosen.values()),
    )


def tensor_bytes(source: Source, *, bits_per_weight: float | None = None, file_size: int | None = None) -> int:
    """The bytes for all tensors in a model of so many bits for each of its values, or in a file of so many bytes.

    Raises UsageError where neither or both are given, or what is given is not above 0.
    """
    if (bits_per_weight is None) == (file_size is None):
        raise UsageError("a size is given as bits a weight or as bytes of the file (allowed: one of the two)")
    if bits_per_weight is not None:
        if not 0 < bits_per_weight <= 64:
            raise UsageError(f"bits a weight are {bits_per_weight} (allowed: above 0, up to 64)")
        return int(bits_per_weight * sum(t.size for t in source.tensors) / 8)
    assert file_size is not None
    if file_size < 1:
        raise UsageError(f"the file's size is {file_size} bytes (allowed: 1 or more)")
    rest = os.path.getsize(source.path) - source.nbytes + METADATA_BYTES + ALIGNMENT * len(source.tensors)
    return max(file_size - rest, 0)


def _wish(name: str, choices: Choices) -> str | None:
    """The type that a user set for a tensor, if any."""
    if name == "token_embd.weight" and choices.embedding_type:
        return choices.embedding_type.upper()
    if name == "output.weight" and choices.output_type:
        return choices.output_type.upper()
    return next((fmt.name for pattern, fmt in choices.patterns if pattern.search(name)), None)


def _refuse(name: str, wish: str, options: list[Candidate]) -> list[Candidate]:
    allowed = ", ".join(c.type_name for c in options)
    raise UsageError(f"tensor {name!r} can't be {wish} where a size is wished for (allowed: {allowed})")
