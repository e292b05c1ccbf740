"""What a report knows of a model and of its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo.evals.report.tensor_labels import TensorName, in_flow, place
from octavo.quantizers.fit.prior import guessed_slopes
from octavo.quantizers.job.quantization_record import MethodRecord

I64 = npt.NDArray[np.int64]

Basis = Literal["measured", "estimated", "trial"]
"""Where errors come from: a base model; the width of the codes; a preset tried on some rows of a float model."""

EDGES = np.linspace(-8, 8, 129)
"""Edges of the histogram of weights, in multiples of their root mean square."""


@dataclass(frozen=True, eq=False)
class Distribution:
    """How a tensor's values lie, from a sample.

    rms      root mean square
    largest  largest magnitude
    counts   int64 [len(EDGES) - 1]: values by their multiple of rms
    outside  values beyond the edges
    """

    rms: float
    largest: float
    counts: I64
    outside: int


@dataclass(frozen=True)
class CodeSteps:
    """How the distances between neighbouring codes lie, in units of the weights, one for each group of one scale.

    low, median, high  the 5th, 50th and 95th percentile of those above 0
    zeros              share of groups whose scale is 0
    """

    low: float
    median: float
    high: float
    zeros: float


@dataclass(frozen=True, eq=False)
class TensorFindings:
    """A tensor of the model.

    type         how it is stored
    base_type    how the base stores it; None without a base, or where that lacks the tensor
    error_type   the type that `error` is of: the tensor's own, or what a preset would make of it
    error        sqrt(sum (x' - x)^2 / sum x^2); None where it is not known
    lost, power  those two sums, over all values of the tensor
    codes        int64 [number of codes]: how often each is used in a sample; None for plain numbers
    steps        None for plain numbers
    bad          values that are NaN or Inf, among those that were read
    """

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    base_type: str | None
    error_type: str
    error: float | None
    lost: float
    power: float
    weights: Distribution
    codes: I64 | None
    steps: CodeSteps | None
    bad: int

    @property
    def size(self) -> int:
        """Values of the tensor."""
        return math.prod(self.shape)

    @cached_property
    def place(self) -> TensorName:
        """Its layer and kind."""
        return place(self.name)

    @property
    def is_matrix(self) -> bool:
        """It is a weight of a product, and no norm or bias."""
        return any(d > 1 for d in self.shape[:-1])

    @property
    def bits(self) -> float:
        """Bits a weight."""
        return 8 * self.nbytes / self.size


@dataclass(frozen=True)
class ModelFindings:
    """A model.

    path, name, arch  of the file, `general.name`, `general.architecture`
    preset            what `general.file_type` says; None where it says nothing that is known
    base              path of the model that errors are against; of the model itself in a trial; None where they are
                      estimates
    trial             the preset that was tried, where `basis` is "trial"
    imatrix           file of the importance matrix that it was made with, as its metadata name it; None without one
    record            what a method recorded in it; None without one
    """

    path: str
    name: str
    arch: str
    preset: str | None
    base: str | None
    basis: Basis
    trial: str | None
    tensors: tuple[TensorFindings, ...]
    imatrix: str | None = None
    record: MethodRecord | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def size(self) -> int:
        """Values of all tensors."""
        return sum(t.size for t in self.tensors)

    @property
    def bits(self) -> float:
        """Bits a weight, over all tensors."""
        return 8 * self.nbytes / max(1, self.size)

    @property
    def matrices(self) -> list[TensorFindings]:
        """The weights of products."""
        return [t for t in self.tensors if t.is_matrix]

    @property
    def error(self) -> float | None:
        """The relative error of all values whose error is known, together."""
        return total_error(self.tensors)

    @cached_property
    def sensitivity(self) -> dict[str, float]:
        """What a relative squared error of 1 in each matrix costs, as the relative squared error of the output.

        It is `guessed_slopes`: a guess from where the matrix stands, by which `octavo quantize` chooses types, too,
        where it has no text to measure on.
        """
        layers = [t.place.layer for t in self.matrices if t.place.layer is not None]
        return guessed_slopes([t.name for t in self.matrices], max(layers, default=0) + 1)

    def cost(self, tensor: TensorFindings) -> float:
        """What a matrix's error costs by its sensitivity; 0 where its error is not known."""
        return self.sensitivity[tensor.name] * (tensor.error or 0) ** 2


def total_error(tensors: Iterable[TensorFindings]) -> float | None:
    """sqrt of what was lost over what there was; None where nothing is known."""
    known = [t for t in tensors if t.error is not None]
    power = math.fsum(t.power for t in known)
    return math.sqrt(math.fsum(t.lost for t in known) / power) if power else 0.0 if known else None


def by_kind(tensors: Iterable[TensorFindings]) -> dict[str, list[TensorFindings]]:
    """The tensors of each kind; kinds in the order in which data goes through them."""
    found: dict[str, list[TensorFindings]] = {}
    for t in tensors:
        found.setdefault(t.place.kind, []).append(t)
    return dict(sorted(found.items(), key=lambda item: in_flow(item[0])))
