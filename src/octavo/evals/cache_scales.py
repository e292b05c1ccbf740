"""Static scales of the KV cache from statistics of a text, and the model's file once more with them.

What they are called in the file is said by `models.cache_scales`.
"""

from __future__ import annotations

import os

import numpy as np

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
from octavo.quantizers.calibration.statistics import Statistics

CENTER, MAGNITUDES = ".cache_k.center", (".cache_k.max", ".cache_v.max")
"""Ends of names; what a file has of them before is left out."""
LEAST = np.float32(1e-6)
"""The least magnitude: a head that was always 0 has one too."""


def require_scales(spec: ModelSpec, path: str | os.PathLike[str]) -> None:
    """Raise UsageError unless `write_scales` can write this model."""
    if isinstance(spec.file, CheckpointFile):
        allowed = "a GGUF file, as octavo convert makes one of a folder"
        raise UsageError(f"{spec.file.path} is a checkpoint folder; its scales go into a file (allowed: {allowed})")
    if any(n.inputs[1] is n.inputs[2] for n in _attentions(spec.graph())):
        raise UsageError(f"{spec.file.path}: keys are values too, which no cache with static scales takes")
    require_apart(path, {MODEL: model_files(spec.file.path, spec.file.files)})


def write_scales(
    spec: ModelSpec, statistics: Statistics, path: str | os.PathLike[str], *, only_centers: bool = False
) -> None:
    """Write the model's GGUF file again, with the scales and centers that `statistics` of it give, or the centers.

    Raises UsageError for statistics of another model and as `require_scales` does, GGUFError where writing fails.
    """
    require_scales(spec, path)
    file = spec.file
    found = {n: x for n, x in tensors_of(spec, statistics).items() if n.endswith(CENTER) or not only_centers}
    measured = [quantize_reference(values, by_name("F32"), name) for name, values in found.items()]
    kept = [_lazy(file, name) for name in file.tensors if not name.endswith((CENTER, *MAGNITUDES))]
    ours = ("general.architecture", "general.alignment")
    metadata = {key: file.metadata.typed(key) for key in file.metadata if key not in ours}
    write_gguf(path, spec.architecture.name, metadata, [*kept, *measured])


def tensors_of(spec: ModelSpec, statistics: Statistics) -> dict[str, F32]:
    """The tensors by name: of each layer the largest magnitudes, and what lies in the middle of keys if attention
    lets it go."""
    attentions = _attentions(spec.graph())
    centered = not any(n.attrs.get("cap") or len(n.inputs) > 6 for n in attentions)
    found: dict[str, F32] = {}
    for node in attentions:
        for cache in node.inputs[1:3]:
            name, measured = cache.name, statistics.caches.get(cache.name)
            if measured is None or measured.shape != cache.shape[1:]:
                raise UsageError(f"{statistics.path}: has no statistics of {name} (allowed: those of this model)")
            moved = centered and name.endswith("cache_k")
            middle = (measured.min + measured.max) / 2 if moved else np.zeros(measured.shape)
            center: F32 = middle.astype(np.float32)
            around = np.maximum(measured.max - center, center - measured.min).max(axis=1)
            found[f"{name}.max"] = np.maximum(around, LEAST).astype(np.float32)
            if center.any():
                found[f"{name}.center"] = center.reshape(-1)
    return found


def _attentions(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "attention"]


def _lazy(file: GGUFFile, name: str) -> LazyTensor:
    tensor = file.tensor(name)

    def load() -> QTensor:
        return file.tensor(name, copy=True)

    return LazyTensor(name, tensor.format, tensor.shape, load)
