"""What to make of a model: the type of each tensor that changes, and whether that can be done."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from octavo.errors import FileError, UsageError, shown
from octavo.formats import BlockFormat, by_name
from octavo.graph.names import split_layer
from octavo.io.atomic import require_target
from octavo.io.distinct_paths import IMATRIX, MODEL, TEXT, require_apart, text_files
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.job_source import ModelSource, SourceTensor
from octavo.quantizers.job.method_result import GgufResult, GgufWeight, MethodRun
from octavo.quantizers.job.unfit_rows import smallest_as_good
from octavo.quantizers.mix.mixing import Choices, choose_types
from octavo.quantizers.mix.presets import FALLBACKS, NEEDS_IMATRIX, WEIGHTED, Preset

_log = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]
"""Told a tensor's name, the values done so far, and those of all tensors."""

_OFTEN_MISSING = ("token_embd.weight", "output.weight")  # from importance matrices


@runtime_checkable
class ReadsText(Protocol):
    """What goes by a text: a file, or "demo"."""

    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class QuantizeJob:
    """What to make of a source: the type of each tensor that changes, what the file says of it, and what is made.

    about  the run of the method that made it, if one did
    notes  what is to be said before it is done
    """

    source: ModelSource
    name: str
    types: Mapping[str, BlockFormat]
    file_type: int | None
    imatrix: Imatrix | None = None
    made: Mapping[str, GgufWeight] = field(default_factory=dict)
    about: MethodRun | None = None
    notes: tuple[str, ...] = ()

    @property
    def tensors(self) -> list[SourceTensor]:
        """Those that are written: all of the source but the scales of weights that take them in."""
        taken_in = {name for t in self.source.tensors if t.name in self.types for name in t.beside}
        return [tensor for tensor in self.source.tensors if tensor.name not in taken_in]

    def target(self, tensor: SourceTensor) -> str:
        """The type that a tensor gets."""
        fmt = self.types.get(tensor.name)
        return fmt.name if fmt else tensor.type_name


class FileMethod(Protocol):
    """What makes tensors of a job that is about to be done, by name; an encoder makes those that it leaves out."""

    def __call__(self, job: QuantizeJob, /) -> GgufResult: ...

    def require(self, job: QuantizeJob, /) -> None:
        """Raise UsageError for a job that there is nothing for."""


def plan(source: ModelSource, preset: Preset, choices: Choices, imatrix: Imatrix | None = None) -> QuantizeJob:
    """The types that `preset` and `choices` give to the tensors of `source`. Raises UsageError."""
    shapes = {tensor.name: tensor.shape for tensor in source.tensors}
    notes, tensors = list[str](), {tensor.name: tensor for tensor in source.tensors}

    def fit(name: str, wished: BlockFormat, k: int) -> BlockFormat:
        importance = None if imatrix is None else imatrix.importance(name, tensors[name].shape)
        return smallest_as_good(tensors[name], wished, importance)

    types = choose_types(
        shapes, source.facts, preset, choices, has_imatrix=imatrix is not None, told=notes.append, fit=fit
    )
    if imatrix is not None:
        types |= _of_guesses(shapes, types, preset, imatrix)
    types = {name: fmt for name, fmt in types.items() if fmt.name != tensors[name].type_name}
    return QuantizeJob(source, preset.name, types, preset.file_type, imatrix, notes=tuple(notes))


def _of_guesses(
    shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, BlockFormat], preset: Preset, imatrix: Imatrix
) -> dict[str, BlockFormat]:
    """Other types for what is of no use without importances, of layers that guess tokens: a matrix lacks these, as a
    model's own steps do not compute them."""
    layers = {split_layer(name)[0] for name in shapes if ".nextn." in name}
    lacking = (name for name in types if split_layer(name)[0] in layers and imatrix.importance(name) is None)
    weighted = {*WEIGHTED, NEEDS_IMATRIX.get(preset.name)}
    return {name: by_name(FALLBACKS[types[name].name]) for name in lacking if types[name].name in weighted}


def require_ready(dst: StrPath, model: Iterable[str], imatrix: Imatrix | None, *readers: object) -> None:
    """Raises UsageError where `dst` is one of the files that are read, FileError where it can't be a file.

    readers  what may read a text
    """
    require_target(dst)
    weights = [imatrix.path] if imatrix is not None and imatrix.path else []
    texts = text_files(*(reader.text for reader in readers if isinstance(reader, ReadsText)))
    require_apart(dst, {MODEL: model, IMATRIX: weights, TEXT: texts})


def require_sources(job: QuantizeJob, allow_requantize: bool) -> None:
    """Raises UsageError for a tensor that can't be, or should not be, quantized from what it is."""
    for tensor in job.tensors:
        if tensor.name not in job.types or tensor.is_float:
            continue
        label = f"{job.source.path}: tensor {shown(tensor.name)} is {tensor.type_name}"
        if tensor.type_name.startswith("I") and tensor.type_name[1:].isdigit():
            raise UsageError(f"{label}, integers (allowed: floats, or a quantized type)")
        if not allow_requantize and not job.types[tensor.name].is_float:
            raise UsageError(
                f"{label}, and quantizing it again would add error; --allow-requantize (allow_requantize=True) does it"
            )


def require_imatrix(job: QuantizeJob) -> None:
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


def _has_importance(job: QuantizeJob, tensor: SourceTensor) -> bool:
    return job.imatrix is not None and job.imatrix.importance(tensor.name, tensor.shape) is not None


def require_weighted(job: QuantizeJob) -> None:
    """Raises UsageError where a tensor needs importance weights that are not there."""
    kind = NEEDS_IMATRIX.get(job.name)
    for name, fmt in job.types.items():
        needed = (fmt.name == kind or fmt.name in WEIGHTED) and name not in _OFTEN_MISSING
        if needed and (job.imatrix is None or job.imatrix.importance(name) is None):
            problem = f"{job.name} makes tensor {shown(name)} {fmt.name}, which is of no use without importance weights"
            raise UsageError(f"{problem}; give an imatrix that has it")
