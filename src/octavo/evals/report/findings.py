"""What a report knows of a model's tensors, one of which is in memory at a time, and its base's beside it."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.errors import NonFiniteError, UsageError, shown
from octavo.evals.report.tensor_labels import TensorName, in_flow, place
from octavo.formats import BlockFormat, Planes, QTensor, dequantize, unpack
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, TensorInfo
from octavo.quantizers.fit.sensitivity_prior import guessed_slopes
from octavo.quantizers.job.job_plan import plan
from octavo.quantizers.job.job_source import FLOATS, gguf_source
from octavo.quantizers.job.quantization_record import MethodRecord, read_record
from octavo.quantizers.job.recode import SLAB, recode
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import PRESETS, find_preset

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

Progress = Callable[[int, int, str], None]
"""Is told values done, of how many, and the name of the tensor."""

Basis = Literal["measured", "estimated", "trial"]
"""Where errors come from: a base model; the width of the codes; a preset tried on some rows of a float model."""

TRIAL = "Q4_K_M"
"""What a model of floats is tried with, where there is nothing else to compare with."""
SAMPLE = 1 << 18
"""Values of a tensor that histograms and trials are made of; rows evenly spaced."""
EDGES = np.linspace(-8, 8, 129)
"""Edges of the histogram of weights, in multiples of their root mean square."""

_log = logging.getLogger("octavo")


class Errors(NamedTuple):
    """Where errors come from: see `Basis`. `base` is an open file, `types` what a trial makes of tensors, by name."""

    basis: Basis
    base: GGUFFile | None
    types: Mapping[str, BlockFormat]
    threads: int | None = None


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


def largest(kinds: Mapping[str, list[TensorFindings]], most: int) -> dict[str, list[TensorFindings]]:
    """The `most` kinds with the most bytes, in their order."""
    kept = sorted(kinds, key=lambda kind: -sum(t.nbytes for t in kinds[kind]))[:most]
    return {kind: members for kind, members in kinds.items() if kind in kept}


def measure(
    model: str | os.PathLike[str], base: str | os.PathLike[str] | None = None, *, threads: int | None = None,
    progress: Progress | None = None
) -> ModelFindings:
    """What can be known of the tensors of the GGUF model at `model`.

    With a `base`, the model that it was made of, errors are measured over all values. Without one they are estimates
    from the codes' widths; and of a model of floats alone they are those that the preset `TRIAL` would make, on a
    sample of rows. Histograms are of samples.

    Raises GGUFError or ModelError for files that are wrong, UsageError for two that do not belong together.
    """
    with open_model_file(model) as file:
        if base is not None:
            with open_model_file(base) as other:
                _check_pair(file, other)
                return _measure(file, Errors("measured", other, {}), progress)
        if any(info.type_name not in FLOATS for info in file.tensors.values()):
            return _measure(file, Errors("estimated", None, {}), progress)
        types = plan(gguf_source(file), find_preset(TRIAL), Choices()).types
        return _measure(file, Errors("trial", None, types, threads), progress)


def _check_pair(file: GGUFFile, base: GGUFFile) -> None:
    """Raises UsageError where the base is of another shape, or another model altogether."""
    common = [name for name in file.tensors if name in base.tensors]
    if not common:
        raise UsageError(f"{file.path} and {base.path} have no tensor in common: they are not of one model")
    for name in common:
        mine, theirs = file.tensors[name].shape, base.tensors[name].shape
        if mine != theirs:
            raise UsageError(
                f"tensor {shown(name)} is {list(mine)} in {file.path} and {list(theirs)} in {base.path}"
                " (allowed: two files of one model)"
            )


def _measure(file: GGUFFile, errors: Errors, progress: Progress | None) -> ModelFindings:
    total = sum(info.size for info in file.tensors.values())
    done, found = 0, []
    for info in file.tensors.values():
        found.append(_tensor(file, info, errors))
        done += info.size
        if progress is not None:
            progress(done, total, info.name)
    bad = [t.name for t in found if t.bad]
    if bad:
        _log.warning("%s: NaN or Inf in %d tensors, the first is %s", file.path, len(bad), shown(bad[0]))
    get, number = file.metadata.get_str, file.metadata.get_int("general.file_type", -1)
    return ModelFindings(
        file.path, get("general.name", ""), get("general.architecture"),
        preset=next((p.name for p in PRESETS if p.file_type == number), None),
        base=errors.base.path if errors.base else file.path if errors.basis == "trial" else None, basis=errors.basis,
        trial=TRIAL if errors.basis == "trial" else None, tensors=tuple(found),
        imatrix=get("quantize.imatrix.file", "") or None, record=read_record(file),
    )


def _tensor(file: GGUFFile, info: TensorInfo, errors: Errors) -> TensorFindings:
    tensor = file.tensor(info.name, copy=True)  # a copy, as the file may be cut while it is open
    rows = some_rows(tensor)
    sample = look(rows)
    lost, power, bad = 0.0, float(sample.weights.rms**2 * info.size), sample.bad
    error, error_type, base_type = None, info.type_name, None
    if errors.base is not None and info.name in errors.base.tensors:
        base_type = errors.base.tensors[info.name].type_name
        lost, power, bad = compare(tensor, errors.base.tensor(info.name, copy=True))
        error = None if bad else _root(lost, power)
    elif errors.basis == "estimated" and not rows.format.is_float:
        error = None if bad else sample.estimate
    elif info.name in errors.types:
        fmt = errors.types[info.name]
        error, error_type = (None if bad else trial_error(rows, fmt, errors.threads)), fmt.name
    elif errors.basis == "trial":
        error = 0.0
    if error is not None and base_type is None:
        lost = error**2 * power
    return TensorFindings(
        info.name, info.shape, info.type_name, info.nbytes, base_type, error_type, error, lost, power,
        sample.weights, sample.codes, sample.steps, bad,
    )


def trial_error(rows: QTensor, fmt: BlockFormat, threads: int | None) -> float | None:
    """The relative error that a format makes of some rows; None where they hold NaN or Inf."""
    try:
        return recode(rows, fmt, threads=threads).error
    except NonFiniteError:
        return None


def compare(tensor: QTensor, base: QTensor) -> tuple[float, float, int]:
    """sum (x' - x)^2 and sum x^2 over all values of a tensor x' and its base x, and how many are NaN or Inf in either.

    Values that are not finite are left out of the sums.
    """
    k = tensor.shape[-1]
    mine, theirs = (t.data.reshape(-1, t.data.shape[-1]) for t in (tensor, base))
    step = max(1, SLAB // k)
    lost, power, bad = [], [], 0
    for start in range(0, len(mine), step):
        rows = slice(start, min(start + step, len(mine)))
        shape = rows.stop - start, k
        x = dequantize(QTensor(base.format, shape, theirs[rows]))
        y = dequantize(QTensor(tensor.format, shape, mine[rows]))
        with np.errstate(invalid="ignore"):
            y -= x
        lost.append(_square_sum(y))
        power.append(_square_sum(x))
        if not (math.isfinite(lost[-1]) and math.isfinite(power[-1])):
            finite = np.isfinite(y) & np.isfinite(x)
            bad += y.size - int(np.count_nonzero(finite))
            lost[-1], power[-1] = (float(np.square(v[finite], dtype=np.float64).sum()) for v in (y, x))
    return math.fsum(lost), math.fsum(power), bad


def _square_sum(x: F32) -> float:
    flat = x.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(flat, flat))


def _root(lost: float, power: float) -> float:
    return math.sqrt(lost / power) if power else math.inf if lost else 0.0


class TensorSample(NamedTuple):
    """What was found in some rows; `bad` of their values are NaN or Inf, and `estimate` is `estimated_error`."""

    weights: Distribution
    codes: I64 | None
    steps: CodeSteps | None
    estimate: float
    bad: int


def some_rows(tensor: QTensor) -> QTensor:
    """Rows of a tensor as a matrix: all of them up to `SAMPLE` values, else as many as that, evenly spaced."""
    k = tensor.shape[-1]
    data = tensor.data.reshape(-1, tensor.data.shape[-1])
    rows = np.unique(np.linspace(0, len(data) - 1, max(1, min(len(data), SAMPLE // k))).astype(np.int64))
    return QTensor(tensor.format, (len(rows), k), np.ascontiguousarray(data[rows]), tensor.name)


def look(rows: QTensor) -> TensorSample:
    """Weights, and codes and scales of a block format."""
    values = dequantize(rows)
    finite = np.isfinite(values)
    bad = values.size - int(np.count_nonzero(finite))
    weights = weights_of(values[finite] if bad else values.reshape(-1))
    fmt = rows.format
    if fmt.is_float:
        return TensorSample(weights, None, None, 0.0, bad)
    planes = unpack(rows)
    codes = np.bincount(planes.q.reshape(-1), minlength=1 << fmt.bits)
    step = scales(planes, fmt) * np.median(widths(fmt))
    estimate = 0.0 if bad else estimated_error(planes, fmt, values)
    return TensorSample(weights, codes, steps_of(step), estimate, bad)


def weights_of(values: F32) -> Distribution:
    """How finite values lie."""
    rms = float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0
    with np.errstate(over="ignore"):
        counts = np.histogram(values / rms if rms else values, EDGES)[0]
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    return Distribution(rms, largest, counts, values.size - int(counts.sum()))


def scales(planes: Planes, fmt: BlockFormat) -> F64:
    """The magnitude of each group's scale [groups], both levels multiplied."""
    assert planes.d is not None
    scale = np.abs(planes.d.astype(np.float64))
    if planes.sc is not None:
        scale = np.repeat(scale, fmt.super // fmt.group, axis=-1) * np.abs(planes.sc)
    return scale.reshape(-1)


def steps_of(steps: F64) -> CodeSteps:
    """How steps lie; NaN and Inf are left out."""
    steps = steps[np.isfinite(steps)]
    used = steps[steps > 0]
    low, median, high = (float(p) for p in np.percentile(used, (5, 50, 95))) if used.size else (0.0, 0.0, 0.0)
    return CodeSteps(low, median, high, 1 - used.size / steps.size if steps.size else 0.0)


def widths(fmt: BlockFormat) -> F64:
    """How wide the interval is that each code stands for, in units of its scale: 1, or by a table."""
    levels = fmt.code(np.arange(1 << fmt.bits, dtype=np.uint8)).astype(np.float64)
    points, inverse = np.unique(levels, return_inverse=True)
    gaps = np.diff(points)
    before, after = np.append(gaps[:1], gaps), np.append(gaps, gaps[-1:])  # the outer codes as wide as their one gap
    return ((before + after) / 2)[inverse]


def estimated_error(planes: Planes, fmt: BlockFormat, values: F32) -> float:
    """The relative error if what was rounded was spread evenly over codes' intervals: step^2 / 12 (Bennett 1948)."""
    step2 = scales(planes, fmt) ** 2
    width2 = widths(fmt) ** 2
    if (width2 == width2[0]).all():
        lost = float(step2.sum()) * fmt.group * width2[0] / 12
    else:
        lost = float(step2 @ width2[planes.q].reshape(-1, fmt.group).sum(axis=1)) / 12
    power = float(np.square(values, dtype=np.float64).sum())
    return (lost / power) ** 0.5 if power else 0.0
