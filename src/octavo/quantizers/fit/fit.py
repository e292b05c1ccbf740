"""Types for a model of a wished size: the best choice of a type for each tensor, and the model made with them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.errors import UsageError, shown
from octavo.formats import BlockFormat, QTensor, by_name
from octavo.formats.spec import F32, AnyArray
from octavo.io.gguf import GGUFFile
from octavo.io.missing_model import require_there
from octavo.io.model_path import resolve
from octavo.quantizers.encoding.encoder import ENCODABLE
from octavo.quantizers.fit.sensitivity_prior import guessed_slopes
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.importance import load_importance
from octavo.quantizers.job.job_plan import FileMethod, Progress, QuantizeJob, StrPath, require_ready, require_sources
from octavo.quantizers.job.job_report import Report
from octavo.quantizers.job.job_source import ModelSource, SourceTensor, gguf_source
from octavo.quantizers.job.recode import recode
from octavo.quantizers.job.write import header_bytes, write_model
from octavo.quantizers.mix.mixing import Choices, fallback, is_kept, require_matches, target_format
from octavo.quantizers.mix.presets import PRESETS

MOST_BITS = 32
UNITS = {"": 1, "b": 1, **{p + "b": 1000**i for i, p in enumerate("kmgt", 1)},
         **{p + "ib": 1024**i for i, p in enumerate("kmgt", 1)}}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
MOST_STATES = 8192
"""Ways that are kept after each tensor. Only where there are more is the result not exact, but next to it."""
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
TYPES = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
GRIDS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
"""Types for tensors with importance weights, without which all but the last are of no use."""
TYPES_OF_32 = ("Q4_0", "IQ4_NL", "Q5_0", "Q5_1", "Q8_0")
"""Types for rows that are not whole blocks of 256."""
SAMPLE = 1 << 18
"""Values of a tensor that its errors are measured on; rows evenly spaced."""
Offers = dict[str, list[BlockFormat]]
"""Types that each tensor may be given."""
Errors = Mapping[str, Mapping[str, float]]
"""The relative squared error that a type makes, by tensor and by type."""
Slopes = Callable[[ModelSource, list[str]], Mapping[str, float]]
"""What a relative squared error of 1 costs in each of the named tensors."""
MEASURED, GUESSED = "KL divergence", "relative squared error of the output"
"""What a loss is, by the slopes."""
GRIDS_FROM = 0.5
"""Grids of fewer bits than this part of the wished ones are not tried: they take long, and lose more than they free."""


@dataclass(frozen=True)
class Target:
    """One of the two.

    bits_per_weight  8 times the bytes of all tensors over their values, as llama.cpp counts; metadata does not count
    file_size        bytes of the whole file
    said             how the user wrote a size, as in "4.2GiB"

    Raises UsageError for none or both, and for what is not above 0.
    """

    bits_per_weight: float | None = None
    file_size: int | None = None
    said: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        bits, size = self.bits_per_weight, self.file_size
        if (bits is None) == (size is None):
            raise UsageError("give a size either as bits a weight or as bytes of the file")
        if bits is not None and not 0 < bits <= MOST_BITS:
            raise UsageError(f"{bits:g} bits a weight (allowed: above 0, up to {MOST_BITS})")
        if size is not None and size < 1:
            raise UsageError(f"a file of {size} bytes (allowed: 1 or more)")

    def tensor_bytes(self, source: ModelSource, header: int) -> int:
        """Bytes that the tensors of `source` may take in a file with `header` bytes more; below 0 if not even these."""
        if self.bits_per_weight is not None:
            return int(self.bits_per_weight * sum(t.size for t in source.tensors) / 8)
        assert self.file_size is not None
        return self.file_size - header

    def least(self, source: ModelSource, header: int, nbytes: int) -> str:
        """The smallest target with room for `nbytes` of tensors, in words that can be given as one."""
        if self.bits_per_weight is None:
            return f"{header + nbytes} bytes"
        bits = 8 * nbytes / sum(t.size for t in source.tensors)
        return f"{math.ceil(100 * bits) / 100:.2f} bits per weight"

    def __str__(self) -> str:
        if self.bits_per_weight is not None:
            return f"{self.bits_per_weight:g} bits per weight"
        return self.said or f"{self.file_size:,} bytes"


def parse_size(text: str) -> int:
    """Bytes of a size such as "4.2GiB", "700 MB" or "123456". Raises UsageError for other text."""
    match = _SIZE.fullmatch(text)
    unit = match and UNITS.get(match[2].lower())
    nbytes = float(match[1]) * unit if match and unit else math.inf
    if not math.isfinite(nbytes):
        problem = f"size {shown(text)}"
        raise UsageError(f"{problem} (allowed: a number and B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as 4.2GiB)")
    return int(nbytes)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A type that a tensor may have: its name, the bytes it takes, and what it costs (0: nothing is lost)."""

    type_name: str
    nbytes: int
    loss: float


class _Step(NamedTuple):
    """How the ways of one more tensor came about: for each the way before it, and the candidate added."""

    parent: I64
    choice: I64


def solve_knapsack(candidates: Mapping[str, Sequence[Candidate]], nbytes: int) -> dict[str, Candidate]:
    """One candidate for each tensor: together at most `nbytes`, with the least sum of losses.

    Raises UsageError where even the smallest candidates take more, and for a loss that is NaN or below 0.
    """
    _check(candidates)
    least = [min(c.nbytes for c in options) for options in candidates.values()]
    if sum(least) > nbytes:
        raise UsageError(f"a size of {nbytes:,} bytes (allowed: at least {sum(least):,}, the smallest types)")
    sizes, losses = np.zeros(1, np.int64), np.zeros(1)
    steps: list[_Step] = []
    rest = sum(least)
    for options, smallest in zip(candidates.values(), least, strict=True):
        rest -= smallest
        sizes, losses, step = _extend(sizes, losses, options, nbytes - rest)
        steps.append(step)
    return _walk_back(candidates, steps, int(losses.argmin()))


def _extend(sizes: I64, losses: F64, options: Sequence[Candidate], most: int) -> tuple[I64, F64, _Step]:
    """All ways with one more tensor that take at most `most` bytes, smallest first, without those that others beat."""
    total = (sizes[:, None] + np.array([c.nbytes for c in options])).reshape(-1)
    lost = (losses[:, None] + np.array([c.loss for c in options])).reshape(-1)
    fits = np.flatnonzero(total <= most)
    order = fits[np.lexsort((lost[fits], total[fits]))]
    best = np.minimum.accumulate(lost[order])
    kept = order[np.concatenate([[True], best[1:] < best[:-1]])]
    if len(kept) > MOST_STATES:
        kept = kept[_thinned(total[kept])]
    return total[kept], lost[kept], _Step(kept // len(options), kept % len(options))


def _thinned(sizes: I64) -> AnyArray:
    """Which of ways of rising size to keep: of each of MOST_STATES equal ranges of sizes the last one, the best."""
    edges = np.linspace(sizes[0], sizes[-1], MOST_STATES)
    return np.unique(np.searchsorted(sizes, edges, side="right") - 1)


def _walk_back(candidates: Mapping[str, Sequence[Candidate]], steps: list[_Step], at: int) -> dict[str, Candidate]:
    chosen: list[Candidate] = []
    for step, options in zip(reversed(steps), reversed(list(candidates.values())), strict=True):
        chosen.append(options[int(step.choice[at])])
        at = int(step.parent[at])
    return dict(zip(candidates, reversed(chosen), strict=True))


def _check(candidates: Mapping[str, Sequence[Candidate]]) -> None:
    for name, options in candidates.items():
        if not options:
            raise UsageError(f"tensor {name!r} has no type to choose")
        for c in options:
            if not (np.isfinite(c.loss) and c.loss >= 0 and c.nbytes >= 0):
                problem = f"{c.type_name} of tensor {name!r} costs {c.loss} and takes {c.nbytes} bytes"
                raise UsageError(f"{problem} (allowed: finite numbers, 0 or more)")


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


def type_errors(
    tensors: Iterable[SourceTensor],
    offered: Offers,
    *,
    imatrix: Imatrix | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Errors:
    """The relative squared errors of the types that tensors are offered, of some of their rows.

    imatrix   weighs the errors
    progress  is told the name of each tensor before it is measured
    """
    found = dict[str, dict[str, float]]()
    for tensor in tensors:
        if progress is not None:
            progress(tensor.name)
        importance = None if imatrix is None else imatrix.importance(tensor.name, tensor.shape)
        sample, weights = sampled(tensor.load(), importance)
        found[tensor.name] = {
            fmt.name: _error(tensor, sample, fmt, weights, threads) for fmt in offered[tensor.name]
        }
    return found


def candidates(
    tensors: Iterable[SourceTensor], offered: Offers, slopes: Mapping[str, float], errors: Errors
) -> dict[str, list[Candidate]]:
    """What each offered type takes and loses: the tensor's slope, what an error of 1 costs, times that of the type."""
    return {
        t.name: [
            Candidate(fmt.name, type_bytes(t, fmt), slopes[t.name] * errors[t.name][fmt.name])
            for fmt in offered[t.name]
        ]
        for t in tensors
    }


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
        changed = {name: smallest(kinds) for name, kinds in offered.items() if smallest(kinds).name != stored[name]}
        require_sources(QuantizeJob(source, str(target), changed, None), allow_requantize)
        header = header_bytes(source, weights, method=method is not None)
        budget = target.tensor_bytes(source, header)
        least = least_bytes(source, offered)
        if budget < least:
            raise UsageError(too_small(source, offered, target, header))
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


def too_small(source: ModelSource, offered: Offers, target: Target, header: int) -> str:
    """What is wrong with a target that even the smallest types exceed, and where rows are odd, that they are why."""
    least = target.least(source, header, least_bytes(source, offered))
    rows = sorted({t.shape[-1] for t in source.tensors if t.name in offered and t.shape[-1] % 256})
    of = f"{', '.join(map(str, rows[:3]))}{', ...' if rows[3:] else ''}"
    why = f" (rows of {of} values are not whole blocks of 256, which smaller types need)" if rows else ""
    return f"a model of {target} can't be: its smallest types take {least}{why}"


def fit_types(
    source: ModelSource,
    offered: Offers,
    nbytes: int,
    slopes: Mapping[str, float],
    *,
    errors: Errors | None = None,
    imatrix: Imatrix | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Fit:
    """The types with which the tensors of `source` take at most `nbytes` and lose the least.

    offered  types that tensors may be given, of `offers`; the others stay as they are
    slopes   what a relative squared error of 1 costs, by tensor
    errors   of these types, where they are known; else they are measured, weighed by `imatrix`

    Raises UsageError for a size that the smallest types do not reach.
    """
    free = [t for t in source.tensors if t.name in offered]
    kept = source.nbytes - sum(t.nbytes for t in free)
    done = iter(range(len(free)))
    tell = (lambda name: progress(f"trying types of {name}", next(done), len(free))) if progress is not None else None
    if errors is None:
        errors = type_errors(free, offered, imatrix=imatrix, threads=threads, progress=tell)
    chosen = solve_knapsack(candidates(free, offered, slopes, errors), nbytes - kept)
    return Fit(
        {name: by_name(c.type_name) for name, c in chosen.items()},
        kept + sum(c.nbytes for c in chosen.values()),
        sum(c.loss for c in chosen.values()),
    )


def smallest(kinds: Sequence[BlockFormat]) -> BlockFormat:
    """The type with the fewest bits."""
    return min(kinds, key=lambda fmt: fmt.bits_per_weight)


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
