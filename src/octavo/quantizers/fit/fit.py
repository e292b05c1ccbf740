"""Types for a model of a wished size: the best choice of a type for each tensor, and the model made with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.errors import UsageError
from octavo.formats import BlockFormat, by_name
from octavo.io.gguf import GGUFFile
from octavo.io.missing_model import require_there
from octavo.io.model_path import resolve
from octavo.quantizers.fit.candidates import Offers, candidates, offers, type_bytes
from octavo.quantizers.fit.prior import guessed_slopes
from octavo.quantizers.fit.size_budget import solve_knapsack
from octavo.quantizers.fit.target import Target
from octavo.quantizers.imatrix.imatrix import Imatrix
from octavo.quantizers.job.importance import load_importance
from octavo.quantizers.job.job_plan import FileMethod, Progress, QuantizeJob, StrPath, require_ready, require_sources
from octavo.quantizers.job.job_report import Report
from octavo.quantizers.job.job_source import ModelSource, gguf_source
from octavo.quantizers.job.write import header_bytes, write_model
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import PRESETS

Slopes = Callable[[ModelSource, list[str]], Mapping[str, float]]
"""What a relative squared error of 1 costs in each of the named tensors."""

MEASURED, GUESSED = "KL divergence", "relative squared error of the output"
"""What a loss is, by the slopes."""


GRIDS_FROM = 0.5
"""Grids of fewer bits than this part of the wished ones are not tried: they take long, and lose more than they free."""


@dataclass(frozen=True)
class Fit:
    """Types by tensor, the bytes of all of the model's tensors with them, and the loss that is expected."""

    types: dict[str, BlockFormat]
    nbytes: int
    loss: float


@dataclass(frozen=True)
class Fitted:
    """What `quantize_to_size` made.

    report   what became of the tensors
    loss     that is expected
    loss_is  what is meant by it: MEASURED, or GUESSED from where weights stand
    budget   bytes that the tensors might take
    """

    report: Report
    loss: float
    loss_is: str
    budget: int

    @property
    def bytes_left(self) -> int:
        """Bytes of the budget that no tensor took."""
        return self.budget - self.report.nbytes


def quantize_to_size(
    src: StrPath,
    dst: StrPath,
    target: Target,
    *,
    slopes: Slopes | None = None,
    imatrix: StrPath | Imatrix | None = None,
    choices: Choices | None = None,
    method: FileMethod | None = None,
    allow_requantize: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Quantize the GGUF model at `src` so that it takes at most `target` and loses as little as it can.

    slopes   measures what errors cost, as `octavo.evals.sensitivity.Measured` does; None guesses it from where weights
             stand, and then the loss is the relative squared error of the output
    imatrix  importance weights, or the path of their file
    choices  types that are set; `pure` means nothing here

    Other arguments, and what is raised, are as of `quantize_file`; also UsageError, naming the least that is possible,
    for a target that no types reach.
    """
    weights = load_importance(imatrix)
    src = resolve(src)
    require_there(src)
    with GGUFFile.open(src) as file:
        require_ready(dst, file.files, weights, method, slopes)
        source = gguf_source(file)
        bits = target.tensor_bytes(source, 0) * 8 / sum(t.size for t in source.tensors)
        grids_by = weights if method is None else None  # in grids no method makes up for errors
        offered = offers(source, choices or Choices(), grids_by, bits * GRIDS_FROM)
        stored = {t.name: t.type_name for t in source.tensors}
        changed = {name: kinds[0] for name, kinds in offered.items() if kinds[0].name != stored[name]}
        require_sources(QuantizeJob(source, str(target), changed, None), allow_requantize)
        header = header_bytes(source, weights, method=method is not None)
        budget = target.tensor_bytes(source, header)
        least = least_bytes(source, offered)
        if budget < least:
            raise UsageError(
                f"a model of {target} can't be: its smallest types take {target.least(source, header, least)}"
            )
        names = list(offered)
        cost = slopes(source, names) if slopes else guessed_slopes(names, source.facts.layers)
        fit = fit_types(source, offered, budget, cost, imatrix=weights, threads=threads, progress=progress)
        types = {name: fmt for name, fmt in fit.types.items() if fmt.name != stored[name]}
        job = QuantizeJob(source, f"fitted to {target}", types, file_type(source, fit), weights)
        report = write_model(
            job, dst, method=method, allow_requantize=allow_requantize, dry_run=dry_run, threads=threads,
            progress=progress,
        )
    return Fitted(report, fit.loss, MEASURED if slopes else GUESSED, budget)


def fit_types(
    source: ModelSource,
    offered: Offers,
    nbytes: int,
    slopes: Mapping[str, float],
    *,
    imatrix: Imatrix | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Fit:
    """The types with which the tensors of `source` take at most `nbytes` and lose the least.

    offered  types that tensors may be given, of `offers`; the others stay as they are
    slopes   what a relative squared error of 1 costs, by tensor
    imatrix  weighs the errors

    Raises UsageError for a size that the smallest types do not reach.
    """
    free = [t for t in source.tensors if t.name in offered]
    kept = source.nbytes - sum(t.nbytes for t in free)
    done = iter(range(len(free)))
    tell = (lambda name: progress(f"trying types of {name}", next(done), len(free))) if progress is not None else None
    found = candidates(free, offered, slopes, imatrix=imatrix, threads=threads, progress=tell)
    chosen = solve_knapsack(found, nbytes - kept)
    return Fit(
        {name: by_name(c.type_name) for name, c in chosen.items()},
        kept + sum(c.nbytes for c in chosen.values()),
        sum(c.loss for c in chosen.values()),
    )


def least_bytes(source: ModelSource, offered: Offers) -> int:
    """Bytes of all tensors, each as small as it may be."""
    return sum(
        min(type_bytes(t, fmt) for fmt in offered[t.name]) if t.name in offered else t.nbytes for t in source.tensors
    )


def file_type(source: ModelSource, fit: Fit) -> int | None:
    """`general.file_type`: that of the preset of the type that most matrices have.

    There is no number for a mix that no preset has, and this is how llama.cpp guesses one for a file that has none. Of
    presets that share a type the plain or the medium one counts.
    """
    kinds = Counter(fit.types[t.name].name if t.name in fit.types else t.type_name for t in source.tensors)
    kinds.pop("F32", None)  # norms
    common = kinds.most_common(1)[0][0] if kinds else "F32"
    of_type = {p.base: p.file_type for p in reversed(PRESETS) if p.name in (p.base, f"{p.base}_M")}
    return of_type.get(common)
