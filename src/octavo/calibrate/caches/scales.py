"""Static scales of the KV cache from statistics of a text, and the model's file once more with them.

What they are called in the file is said by `models.cache_scales`.
"""

from __future__ import annotations

import os

import numpy as np

from octavo.calibrate.caches.checkpoint_scales import require_folder, write_folder
from octavo.calibrate.caches.clips import spread
from octavo.errors import UsageError
from octavo.formats import quantize_reference
from octavo.formats.qtensor import QTensor
from octavo.formats.spec import F32
from octavo.formats.table import by_name
from octavo.graph.node import Graph, Node
from octavo.huggingface.file import CheckpointFile
from octavo.io.apart import MODEL, model_files, require_apart
from octavo.io.gguf import GGUFFile, LazyTensor, write_gguf
from octavo.models import ModelSpec
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.file import Statistics

CENTER, MAGNITUDES = ".cache_k.center", (".cache_k.max", ".cache_v.max", ".cache_k.clip", ".cache_v.clip")
"""Ends of names; what a file has of them before is left out."""
LEAST = np.float32(1e-6)
"""The least magnitude: a head that was always 0 has one too."""


def require_scales(spec: ModelSpec, path: str | os.PathLike[str], *, only_centers: bool = False) -> None:
    """Raise UsageError unless `write_scales` can write this model, FileError for a folder that is not new."""
    if spec.architecture.encoder:
        raise UsageError(f"{spec.file.path}: an embedding model keeps no keys (allowed: models that say text)")
    attentions = _attentions(spec.graph())
    if any(n.inputs[1] is n.inputs[2] for n in attentions):
        raise UsageError(f"{spec.file.path}: keys are values too, which no cache with static scales takes")
    if only_centers and not _can_be_centered(attentions):
        problem = "scores have a cap or sinks, beside which keys have to be whole: there are no centers to write"
        raise UsageError(f"{spec.file.path}: {problem} (allowed: without --only-centers)")
    require_apart(path, {MODEL: model_files(spec.file.path, spec.file.files)})
    if isinstance(spec.file, CheckpointFile):
        if only_centers:
            problem = "is a checkpoint, which has no words for centers"
            raise UsageError(f"{spec.file.path} {problem}: `octavo convert` makes a GGUF file of it")
        require_folder(spec, spec.file, path)


def write_scales(
    spec: ModelSpec, statistics: Statistics, path: str | os.PathLike[str], *, only_centers: bool = False
) -> None:
    """Write the model again, with the scales and centers that `statistics` of it give, or the centers: a GGUF file, or
    a folder with scales if it is a checkpoint.

    Raises UsageError for statistics of another model, what `require_scales` raises, and GGUFError or FileError where
    writing fails.
    """
    require_scales(spec, path, only_centers=only_centers)
    file = spec.file
    if isinstance(file, CheckpointFile):
        measured = _measured(spec, statistics)
        largest = {name: np.maximum(np.abs(m.min), np.abs(m.max)).max(axis=1) for name, m in measured.items()}
        write_folder(spec, file, {name: np.maximum(x, LEAST).astype(np.float32) for name, x in largest.items()}, path)
        return
    found = {n: x for n, x in tensors_of(spec, statistics).items() if n.endswith(CENTER) or not only_centers}
    added = [quantize_reference(values, by_name("F32"), name) for name, values in found.items()]
    kept = [_lazy(file, name) for name in file.tensors if not name.endswith((CENTER, *MAGNITUDES))]
    ours = ("general.architecture", "general.alignment")
    metadata = {key: file.metadata.typed(key) for key in file.metadata if key not in ours}
    write_gguf(path, spec.architecture.name, metadata, [*kept, *added])


def tensors_of(spec: ModelSpec, statistics: Statistics) -> dict[str, F32]:
    """The tensors by name: of each layer the largest magnitudes, what lies in the middle of keys if attention lets it
    go, and where int8 cuts off if the statistics say so."""
    centered = can_be_centered(spec)
    found: dict[str, F32] = {}
    for name, measured in _measured(spec, statistics).items():
        center, largest = spread(measured, centered=centered and name.endswith("cache_k"))
        found[f"{name}.max"] = np.maximum(largest, LEAST)
        if name in statistics.clips:
            found[f"{name}.clip"] = np.clip(statistics.clips[name], LEAST, found[f"{name}.max"])
        if center.any():
            found[f"{name}.center"] = center.reshape(-1)
    return found


def _measured(spec: ModelSpec, statistics: Statistics) -> dict[str, ChannelStatistics]:
    """What was measured of the model's caches, by their names."""
    found: dict[str, ChannelStatistics] = {}
    for cache in (cache for node in _attentions(spec.graph()) for cache in node.inputs[1:3]):
        measured = statistics.caches.get(cache.name)
        if measured is None or measured.shape != cache.shape[1:]:
            raise UsageError(f"{statistics.path}: has no statistics of {cache.name} (allowed: those of this model)")
        found[cache.name] = measured
    return found


def can_be_centered(spec: ModelSpec) -> bool:
    """Whether keys of a model can be stored less a center."""
    return _can_be_centered(_attentions(spec.graph()))


def _can_be_centered(attentions: list[Node]) -> bool:
    """Whether scores may all change by the same number: not under a cap, and not beside sinks."""
    return not any(n.attrs.get("cap") or len(n.inputs) > 6 for n in attentions)


def _attentions(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "attention"]


def _lazy(file: GGUFFile, name: str) -> LazyTensor:
    tensor = file.tensor(name)

    def load() -> QTensor:
        return file.tensor(name, copy=True)

    return LazyTensor(name, tensor.format, tensor.shape, load)
