"""A planned job done: tensor by tensor into a file that appears whole or not at all."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

from octavo.backends.cores import threads_of
from octavo.errors import QuantFormatError, UsageError, shown
from octavo.formats import BlockFormat, QTensor, by_name
from octavo.formats.spec import F32
from octavo.io.atomic import require_room
from octavo.io.gguf import LazyTensor, TypedValue, ValueType, write_gguf
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.job_plan import (
    FileMethod,
    Progress,
    QuantizeJob,
    StrPath,
    require_imatrix,
    require_sources,
    require_weighted,
)
from octavo.quantizers.job.job_report import Report, TensorRow
from octavo.quantizers.job.job_source import ModelSource, SourceTensor
from octavo.quantizers.job.method_result import MethodRun, undersampled, warn
from octavo.quantizers.job.quantization_record import KEY, MethodRecord, WeightRecord, record_bytes, to_json
from octavo.quantizers.job.recode import Pipeline, Slab, checked_copy, joined, room, slabs_of, workers

_log = logging.getLogger(__name__)
QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION, the version of the block formats
_INFO_BYTES = 8 + 4 + 4 + 8  # bytes of a tensor info without its name and sizes
_ALIGNMENT = 32  # alignment of tensors where the file says nothing
_TEXT_BYTES = 127  # the longest text that llama-quantize writes into metadata


def write_model(
    job: QuantizeJob,
    dst: StrPath,
    *,
    method: FileMethod | None = None,
    allow_requantize: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the model that a job plans; arguments and errors are those of `quantize_file`."""
    require_imatrix(job)
    report = Report(job.source.path, os.fsdecode(dst), job.name, dry_run)
    if method is not None:
        method.require(job)
    if not dry_run:
        require_sources(job, allow_requantize)
    for note in job.notes:
        _log.warning("%s", note)
    if dry_run:
        report.rows.extend(_row(job, tensor) for tensor in job.tensors)
        return report
    require_weighted(job)
    require_room(dst, sum(_row(job, tensor).nbytes for tensor in job.tensors))
    made = None if method is None else method(job)
    if made is not None:
        job = replace(job, made=made.tensors, about=made.about)
        report.starved.extend(undersampled(made.tensors.values()))
        warn(report.starved)
    try:
        with _Writer(job, report, threads, progress) as writer:
            write_gguf(dst, job.source.arch, _metadata(job), [writer.lazy(tensor) for tensor in job.tensors])
    except BaseException as error:
        if made is not None:
            made.end(error)
        raise
    if made is not None:
        made.end(None)
    return report


class _Writer:
    """Makes each tensor when the file wants it, and keeps the report.

    Threads are at work on the next slabs meanwhile: each reads, encodes and measures one. A context manager.
    """

    def __init__(self, job: QuantizeJob, report: Report, threads: int | None, progress: Progress | None) -> None:
        self.job, self.report, self.progress = job, report, progress
        self.done, self.total = 0, sum(tensor.size for tensor in job.tensors)
        count = threads_of(threads)
        self.workers = workers(count)
        self.parts = Pipeline(self._calls(), self.workers, room(count))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.workers.shutdown(cancel_futures=True)

    def lazy(self, tensor: SourceTensor) -> LazyTensor:
        kind = self.job.target(tensor)
        try:
            fmt = by_name(kind)
        except QuantFormatError:
            problem = f"tensor {shown(tensor.name)} is {kind}, which can be read but not written"
            raise UsageError(f"{problem}; choose a preset that gives it another type") from None
        return LazyTensor(tensor.name, fmt, tensor.shape, lambda: self._make(tensor, fmt))

    def _calls(self) -> Iterator[tuple[int, Callable[[], Slab | QTensor]]]:
        """What makes the slabs of tensors that change, and others whole, with their values, in file order."""
        for tensor in self.job.tensors:
            if tensor.name in self.job.made:
                continue
            loaded = self.workers.submit(tensor.load)  # before what waits for it
            fmt = self.job.types.get(tensor.name)
            if fmt is None:
                yield tensor.size, partial(_copied, loaded)
            else:
                yield from slabs_of(loaded.result, tensor.shape, fmt, self._importance(tensor), tensor.scale)

    def _importance(self, tensor: SourceTensor) -> F32 | None:
        imatrix = self.job.imatrix
        return imatrix.importance(tensor.name, tensor.shape) if imatrix else None

    def _make(self, tensor: SourceTensor, fmt: BlockFormat) -> QTensor:
        self._advance(tensor, 0)
        made = self.job.made.get(tensor.name)
        if made is not None or tensor.name not in self.job.types:
            kept = next(cast(Iterator[QTensor], self.parts)) if made is None else made.tensor(fmt, tensor.shape)
            self.report.rows.append(_row(self.job, tensor))
            self._advance(tensor, tensor.size)
            return kept
        recoded = joined(
            cast(Iterator[Slab], self.parts), tensor.name, tensor.shape, fmt,
            weighted=self._importance(tensor) is not None, advance=lambda values: self._advance(tensor, values),
        )
        self.report.rows.append(_row(self.job, tensor, recoded.error, recoded.weighted))
        return recoded.tensor

    def _advance(self, tensor: SourceTensor, values: int) -> None:
        self.done += values
        if self.progress:
            self.progress(tensor.name, self.done, self.total)


def _copied(loaded: Future[QTensor]) -> QTensor:
    return checked_copy(loaded.result())


def _row(job: QuantizeJob, tensor: SourceTensor, error: float | None = None, weighted: bool = False) -> TensorRow:
    fmt = job.types.get(tensor.name)
    nbytes = tensor.nbytes if fmt is None else tensor.size // fmt.block * fmt.block_bytes
    made = job.made.get(tensor.name)
    before = None
    if made is not None:
        error, weighted, before = made.error, True, made.before
    stored, source_bytes = tensor.origin or (tensor.type_name, tensor.nbytes)
    exact = not error if tensor.origin and (fmt is None or error is not None) else None
    kind = job.target(tensor)
    return TensorRow(tensor.name, tensor.shape, stored, kind, source_bytes, nbytes, error, weighted, exact, before)


def _metadata(job: QuantizeJob) -> dict[str, Any]:
    metadata = {**job.source.metadata, "general.quantization_version": TypedValue(ValueType.U32, QUANTIZATION_VERSION)}
    if job.file_type is not None:
        metadata["general.file_type"] = TypedValue(ValueType.U32, job.file_type)
    metadata |= _imatrix_keys(job.imatrix) if job.imatrix else {}
    return metadata if job.about is None else metadata | {KEY: to_json(_record(job, job.about))}


def _record(job: QuantizeJob, about: MethodRun) -> MethodRecord:
    """What a method did, for the file to keep."""
    made = ((name, about.method, each.before, each.error) for name, each in job.made.items())
    weights = (WeightRecord(*row, {}, job.made[row[0]].channels) for row in made)
    return MethodRecord(about, job.name, tuple(weights), starved=undersampled(job.made.values()))


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


def header_bytes(source: ModelSource, imatrix: Imatrix | None = None, *, method: bool = False) -> int:
    """Bytes of a file made of `source` beside its tensors, at most: metadata, tensor infos, gaps between tensors.

    method  with a record of what a method did
    """
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        path = os.path.join(folder, "metadata.gguf")
        write_gguf(path, source.arch, _metadata(QuantizeJob(source, "", {}, 0, imatrix)), [])
        pairs = os.path.getsize(path)
    infos = sum(_INFO_BYTES + len(t.name.encode()) + 8 * len(t.shape) for t in source.tensors)
    alignment = source.metadata.get("general.alignment")
    gap = alignment.value if alignment is not None else _ALIGNMENT
    record = record_bytes({t.name: t.shape for t in source.tensors}) if method else 0
    return pairs + infos + gap * (len(source.tensors) + 1) + record
