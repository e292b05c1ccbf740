"""A whole model quantized, tensor by tensor, into a file that appears whole or not at all."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from octavo.data import resolve
from octavo.errors import FileError, QuantFormatError, UsageError, shown
from octavo.formats import BlockFormat, QTensor, by_name
from octavo.io.atomic import require_room, require_target
from octavo.io.gguf import GGUFFile, LazyTensor, TypedValue, ValueType, write_gguf
from octavo.io.missing import require_there
from octavo.quantizers.imatrix.imatrix import Imatrix
from octavo.quantizers.job.ahead import Ahead, worker
from octavo.quantizers.job.recode import Recoded, Slab, checked_copy, read_slabs, recode_slabs
from octavo.quantizers.job.report import Report, TensorRow
from octavo.quantizers.job.source import Source, SourceTensor, gguf_source
from octavo.quantizers.mix.mixing import Choices, choose_types
from octavo.quantizers.mix.presets import NEEDS_IMATRIX, Preset, find_preset

_log = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]
"""Told a tensor's name, the values done so far, and those of all tensors."""

QUANTIZATION_VERSION = 2  # of the block formats, GGML_QNT_VERSION
_OFTEN_MISSING = ("token_embd.weight", "output.weight")  # from importance matrices
_INFO_BYTES = 8 + 4 + 4 + 8  # of a tensor info, beside its name and sizes
_ALIGNMENT = 32  # of tensors, where the file says nothing
_TEXT_BYTES = 127  # of a metadata text that llama-quantize writes


@dataclass(frozen=True)
class Job:
    """What to make of a source: the type of each tensor that changes, and what the file says of it."""

    source: Source
    name: str
    types: Mapping[str, BlockFormat]
    file_type: int | None
    imatrix: Imatrix | None = None

    @property
    def tensors(self) -> list[SourceTensor]:
        """Those that are written: all of the source but the scales of weights that take them in."""
        taken_in = {name for t in self.source.tensors if t.name in self.types for name in t.beside}
        return [tensor for tensor in self.source.tensors if tensor.name not in taken_in]

    def target(self, tensor: SourceTensor) -> str:
        """The type that a tensor gets."""
        fmt = self.types.get(tensor.name)
        return fmt.name if fmt else tensor.type_name


def quantize_file(
    src: StrPath,
    dst: StrPath,
    preset: str,
    *,
    imatrix: StrPath | Imatrix | None = None,
    choices: Choices | None = None,
    allow_requantize: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Quantize the GGUF model at `src` (any shard of a split one, or "demo") into the file `dst`.

    preset            as in "Q4_K_M", see `PRESETS`
    imatrix           importance weights, or the path of their file
    choices           what else decides on types
    allow_requantize  quantized tensors may be quantized again, at a loss
    dry_run           nothing is written; the report has types and sizes

    Holds a tensor at a time. `dst` appears, or is replaced, when all of it is written. Raises GGUFError, ModelError or
    FileError for files that are wrong or can't be written, UsageError for what does not go together, NonFiniteError and
    QuantFormatError for values that can't be stored.
    """
    weights = imatrix if isinstance(imatrix, Imatrix | None) else Imatrix.load(imatrix)
    src = resolve(src)
    require_there(src)
    with GGUFFile.open(src) as file:
        require_ready(dst, file.files)
        job = plan(gguf_source(file), find_preset(preset), choices or Choices(), weights)
        return run(job, dst, allow_requantize=allow_requantize, dry_run=dry_run, threads=threads, progress=progress)


def plan(source: Source, preset: Preset, choices: Choices, imatrix: Imatrix | None = None) -> Job:
    """The types that `preset` and `choices` give to the tensors of `source`. Raises UsageError."""
    shapes = {tensor.name: tensor.shape for tensor in source.tensors}
    types = choose_types(shapes, source.facts, preset, choices, has_imatrix=imatrix is not None)
    stored = {tensor.name: tensor.type_name for tensor in source.tensors}
    types = {name: fmt for name, fmt in types.items() if fmt.name != stored[name]}
    return Job(source, preset.name, types, preset.file_type, imatrix)


def run(
    job: Job,
    dst: StrPath,
    *,
    allow_requantize: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Do a job; see `quantize_file`."""
    _require_imatrix(job)
    report = Report(job.source.path, os.fsdecode(dst), job.name, dry_run)
    if dry_run:
        report.rows.extend(_row(job, tensor) for tensor in job.tensors)
        return report
    require_sources(job, allow_requantize)
    _require_weighted(job)
    require_room(dst, sum(_row(job, tensor).nbytes for tensor in job.tensors))
    with _Writer(job, report, threads, progress) as writer:
        write_gguf(dst, job.source.arch, _metadata(job), [writer.lazy(tensor) for tensor in job.tensors])
    return report


class _Writer:
    """Makes each tensor when the file wants it, and keeps the report.

    The next slabs are read, and what the last ones lost is measured, beside the encoder. A context manager.
    """

    def __init__(self, job: Job, report: Report, threads: int | None, progress: Progress | None) -> None:
        self.job, self.report, self.threads, self.progress = job, report, threads, progress
        self.done, self.total = 0, sum(tensor.size for tensor in job.tensors)
        self.reader, self.checker = worker(threads), worker(threads)
        self.parts = Ahead(self._read(), self.reader)
        self.last: tuple[SourceTensor, Recoded] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.reader.shutdown(cancel_futures=True)
        self.checker.shutdown(cancel_futures=True)

    def lazy(self, tensor: SourceTensor) -> LazyTensor:
        kind = self.job.target(tensor)
        try:
            fmt = by_name(kind)
        except QuantFormatError:
            problem = f"tensor {shown(tensor.name)} is {kind}, which can be read but not written"
            raise UsageError(f"{problem}; choose a preset that gives it another type") from None
        return LazyTensor(tensor.name, fmt, tensor.shape, lambda: self._make(tensor, fmt))

    def _read(self) -> Iterator[Slab | QTensor]:
        """The slabs of the tensors that change, and the others whole, in file order."""
        for tensor in self.job.tensors:
            loaded = tensor.load()
            if tensor.name in self.job.types:
                imatrix = self.job.imatrix
                importance = imatrix.importance(tensor.name, tensor.shape) if imatrix else None
                yield from read_slabs(loaded, importance, tensor.scale)
            else:
                yield checked_copy(loaded)

    def _make(self, tensor: SourceTensor, fmt: BlockFormat) -> QTensor:
        self._advance(tensor, 0)
        if tensor.name not in self.job.types:
            made = next(cast(Iterator[QTensor], self.parts))
            self._settle()
            self.report.rows.append(_row(self.job, tensor))
            self._advance(tensor, tensor.size)
            return made
        recoded = recode_slabs(
            cast(Iterator[Slab], self.parts), tensor.name, tensor.shape, fmt, self.checker,
            threads=self.threads, advance=lambda values: self._advance(tensor, values),
        )  # fmt: skip
        self._settle()
        self.last = tensor, recoded
        if self.done == self.total:
            self._settle()
        return recoded.tensor

    def _settle(self) -> None:
        """Put the row of the tensor before in the report, its errors being known by now."""
        if self.last is not None:
            tensor, recoded = self.last
            self.last = None
            self.report.rows.append(_row(self.job, tensor, recoded.error, recoded.weighted))

    def _advance(self, tensor: SourceTensor, values: int) -> None:
        self.done += values
        if self.progress:
            self.progress(tensor.name, self.done, self.total)


def _row(job: Job, tensor: SourceTensor, error: float | None = None, weighted: bool = False) -> TensorRow:
    fmt = job.types.get(tensor.name)
    nbytes = tensor.nbytes if fmt is None else tensor.size // fmt.block * fmt.block_bytes
    kind = job.target(tensor)
    return TensorRow(tensor.name, tensor.shape, tensor.type_name, kind, tensor.nbytes, nbytes, error, weighted)


def _metadata(job: Job) -> dict[str, Any]:
    metadata = {**job.source.metadata, "general.quantization_version": TypedValue(ValueType.U32, QUANTIZATION_VERSION)}
    if job.file_type is not None:
        metadata["general.file_type"] = TypedValue(ValueType.U32, job.file_type)
    return metadata | (_imatrix_keys(job.imatrix) if job.imatrix else {})


def _imatrix_keys(imatrix: Imatrix) -> dict[str, Any]:
    """Where the importance weights came from, under the keys that llama-quantize writes."""
    keys: dict[str, Any] = {}
    if imatrix.path:
        keys["quantize.imatrix.file"] = _cut(imatrix.path)
    if imatrix.datasets:
        keys["quantize.imatrix.dataset"] = _cut(imatrix.datasets[0])
    keys["quantize.imatrix.entries_count"] = TypedValue(ValueType.U32, len(imatrix.entries))
    if imatrix.chunk_count:
        keys["quantize.imatrix.chunks_count"] = TypedValue(ValueType.U32, imatrix.chunk_count)
    return keys


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:_TEXT_BYTES].decode("utf-8", "ignore")


def header_bytes(source: Source, imatrix: Imatrix | None = None) -> int:
    """Bytes of a file made of `source` beside its tensors, at most: metadata, tensor infos, gaps between tensors."""
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        path = os.path.join(folder, "metadata.gguf")
        write_gguf(path, source.arch, _metadata(Job(source, "", {}, 0, imatrix)), [])
        pairs = os.path.getsize(path)
    infos = sum(_INFO_BYTES + len(t.name.encode()) + 8 * len(t.shape) for t in source.tensors)
    alignment = source.metadata.get("general.alignment")
    gap = alignment.value if alignment is not None else _ALIGNMENT
    return pairs + infos + gap * (len(source.tensors) + 1)


def require_ready(dst: StrPath, sources: Iterable[str]) -> None:
    """Raises UsageError where `dst` is one of the files that are read, FileError where it can't be a file."""
    require_target(dst)
    require_other(dst, sources)


def require_other(dst: StrPath, sources: Iterable[str]) -> None:
    """Raises UsageError where `dst` is one of the files that are read."""
    for source in sources:
        if os.path.realpath(dst) == os.path.realpath(source) or (os.path.exists(dst) and os.path.samefile(dst, source)):
            raise UsageError(f"{os.fsdecode(dst)} is the model that is read; write to another file")


def require_sources(job: Job, allow_requantize: bool) -> None:
    """Raises UsageError for a tensor that can't be, or should not be, quantized from what it is."""
    for tensor in job.tensors:
        if tensor.name not in job.types or tensor.is_float:
            continue
        label = f"{job.source.path}: tensor {shown(tensor.name)} is {tensor.type_name}"
        if tensor.type_name.startswith("I") and tensor.type_name[1:].isdigit():
            raise UsageError(f"{label}, integers (allowed: floats, or a quantized type)")
        if not allow_requantize:
            raise UsageError(
                f"{label}, and quantizing it again loses more; --allow-requantize (allow_requantize=True) does it"
            )


def _require_imatrix(job: Job) -> None:
    """Raises FileError for an importance matrix of another model, and warns of tensors that it lacks."""
    if job.imatrix is None or not job.imatrix.entries:
        return
    missing = [t.name for t in job.tensors if t.name in job.types and not _has_importance(job, t)]
    if job.types and len(missing) == len(job.types):
        problem = f"has importances of {len(job.imatrix.entries)} weights, none of which {job.source.path} has"
        raise FileError(problem, file=job.imatrix.path, allowed="those of the model that is quantized")
    missing = [name for name in missing if name not in _OFTEN_MISSING]
    if missing:
        _log.warning("no importances for %d of %d tensors: %s, ...", len(missing), len(job.types), missing[0])


def _has_importance(job: Job, tensor: SourceTensor) -> bool:
    return job.imatrix is not None and job.imatrix.importance(tensor.name, tensor.shape) is not None


def _require_weighted(job: Job) -> None:
    """Raises UsageError where a tensor needs importance weights that are not there."""
    kind = NEEDS_IMATRIX.get(job.name)
    for name, fmt in job.types.items():
        needed = fmt.name == kind and name not in _OFTEN_MISSING
        if needed and (job.imatrix is None or job.imatrix.importance(name) is None):
            problem = f"{job.name} makes tensor {shown(name)} {kind}, which is of no use without importance weights"
            raise UsageError(f"{problem}; give an imatrix that has it")
