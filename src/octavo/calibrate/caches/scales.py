"""Static scales of the KV cache from statistics of a text, and the model's file once more with them.

What they are called in the file is said by `models.cache_scales`.
"""

from __future__ import annotations

import os

import numpy as np

from octavo.calibrate.caches.checkpoint_scales import require_folder, write_folder
from octavo.calibrate.caches.clips import largest_magnitudes
from octavo.errors import UsageError
from octavo.formats import quantize_reference
from octavo.formats.qtensor import QTensor
from octavo.formats.spec import F32
from octavo.formats.table import by_name
from octavo.graph.node import Graph, Node
from octavo.huggingface.checkpoint_file import CheckpointFile
from octavo.io.apart import MODEL, model_files, require_apart
from octavo.io.gguf import GGUFFile, LazyTensor, write_gguf
from octavo.models import ModelSpec
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.statistics_file import Statistics

MAGNITUDES = (".cache_k.max", ".cache_v.max", ".cache_k.clip", ".cache_v.clip")
"""Ends of names; what a file has of them before is left out."""
LEAST = np.float32(1e-6)
"""The least magnitude: a head that was always 0 has one too."""


def require_scales(spec: ModelSpec, path: str | os.PathLike[str]) -> None:
    """Raise UsageError unless `write_scales` can write this model, FileError for a folder that is not new."""
    if spec.architecture.encoder:
        raise UsageError(f"{spec.file.path}: an embedding model keeps no keys (allowed: models that say text)")
    if any(n.inputs[1] is n.inputs[2] for n in _attentions(spec.graph())):
        raise UsageError(f"{spec.file.path}: keys are values too, which no cache with static scales takes")
    require_apart(path, {MODEL: model_files(spec.file.path, spec.file.files)})
    if isinstance(spec.file, CheckpointFile):
        require_folder(spec, spec.file, path)


def write_scales(spec: ModelSpec, statistics: Statistics, path: str | os.PathLike[str]) -> None:
    """Write the model again, with the scales that `statistics` of it give: a GGUF file, or a folder if it is a
    checkpoint.

    Raises UsageError for statistics of another model, what `require_scales` raises, and GGUFError or FileError where
    writing fails.
    """
    require_scales(spec, path)
    file = spec.file
    if isinstance(file, CheckpointFile):
        measured = _measured(spec, statistics)
        write_folder(spec, file, {name: np.maximum(largest_magnitudes(m), LEAST) for name, m in measured.items()}, path)
        return
    added = [quantize_reference(x, by_name("F32"), name) for name, x in tensors_of(spec, statistics).items()]
    kept = [_lazy(file, name) for name in file.tensors if not name.endswith(MAGNITUDES)]
    ours = ("general.architecture", "general.alignment")
    metadata = {key: file.metadata.typed(key) for key in file.metadata if key not in ours}
    write_gguf(path, spec.architecture.name, metadata, [*kept, *added])


def tensors_of(spec: ModelSpec, statistics: Statistics) -> dict[str, F32]:
    """The tensors by name: of each layer the largest magnitudes, and where int8 cuts off if the statistics say so."""
    found: dict[str, F32] = {}
    for name, measured in _measured(spec, statistics).items():
        found[f"{name}.max"] = np.maximum(largest_magnitudes(measured), LEAST)
        if name in statistics.clips:
            found[f"{name}.clip"] = np.clip(statistics.clips[name], LEAST, found[f"{name}.max"])
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


def _attentions(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "attention"]


def _lazy(file: GGUFFile, name: str) -> LazyTensor:
    tensor = file.tensor(name)

    def load() -> QTensor:
        return file.tensor(name, copy=True)

    return LazyTensor(name, tensor.format, tensor.shape, load)
