"""Goes through a model's tensors, one in memory at a time, and through its base's beside it."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.errors import NonFiniteError, UsageError, shown
from octavo.evals.report.findings import Basis, ModelFindings, TensorFindings
from octavo.evals.report.sample import look, some_rows
from octavo.formats import BlockFormat, QTensor, dequantize
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, TensorInfo
from octavo.quantizers.job.job_plan import plan
from octavo.quantizers.job.job_source import FLOATS, gguf_source
from octavo.quantizers.job.quantization_record import read_record
from octavo.quantizers.job.recode import SLAB, recode
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import PRESETS, find_preset

Progress = Callable[[int, int, str], None]
"""Is told values done, of how many, and the name of the tensor."""

TRIAL = "Q4_K_M"
"""What a model of floats is tried with, where there is nothing else to compare with."""

_log = logging.getLogger("octavo")


@dataclass(frozen=True)
class Errors:
    """Where errors come from: see `Basis`. `base` is an open file, `types` what a trial makes of tensors, by name."""

    basis: Basis
    base: GGUFFile | None
    types: dict[str, BlockFormat]
    threads: int | None = None


def measure(
    model: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ModelFindings:
    """What can be known of the tensors of the GGUF model at `model`.

    With a `base`, the model that it was made of, errors are measured over all values. Without one they are estimates
    from the codes' widths; and of a model of floats alone they are those that the preset `TRIAL` would make, on a
    sample of rows. Histograms are of samples.

    Raises GGUFError or ModelError for files that are wrong, UsageError for two that do not belong together.
    """
    with open_model_file(model) as file:
        if base is None:
            return _measure(file, _without_base(file, threads), progress)
        with open_model_file(base) as other:
            _check_pair(file, other)
            return _measure(file, Errors("measured", other, {}), progress)


def _without_base(file: GGUFFile, threads: int | None) -> Errors:
    if all(info.type_name in FLOATS for info in file.tensors.values()):
        types = plan(gguf_source(file), find_preset(TRIAL), Choices()).types
        return Errors("trial", None, dict(types), threads)
    return Errors("estimated", None, {})


def _check_pair(file: GGUFFile, base: GGUFFile) -> None:
    """Raises UsageError where the base is of another shape, or another model altogether."""
    common = [name for name in file.tensors if name in base.tensors]
    if not common:
        raise UsageError(f"{file.path} and {base.path} have no tensor in common (allowed: two files of one model)")
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
    base = errors.base.path if errors.base else file.path if errors.basis == "trial" else None
    return ModelFindings(
        path=file.path,
        name=file.metadata.get_str("general.name", ""),
        arch=file.metadata.get_str("general.architecture"),
        preset=_preset(file),
        base=base,
        basis=errors.basis,
        trial=TRIAL if errors.basis == "trial" else None,
        tensors=tuple(found),
        imatrix=file.metadata.get_str("quantize.imatrix.file", "") or None,
        record=read_record(file),
    )


def _preset(file: GGUFFile) -> str | None:
    number = file.metadata.get_int("general.file_type", -1)
    return next((p.name for p in PRESETS if p.file_type == number), None)


def _tensor(file: GGUFFile, info: TensorInfo, errors: Errors) -> TensorFindings:
    tensor = file.tensor(info.name, copy=True)  # a copy, as the file may be cut while it is open
    rows = some_rows(tensor)
    sample = look(rows)
    lost, power, bad = 0.0, float(sample.weights.rms**2 * info.size), sample.bad
    error: float | None = None
    error_type, base_type = info.type_name, None
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
