"""Static scales of the KV cache from statistics of a text, and the model's file once more with them.

What they are called in the file is said by `models.cache_scales`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from octavo.calibrate.caches.clips import largest_magnitudes
from octavo.errors import UsageError
from octavo.formats import quantize_reference
from octavo.formats.qtensor import QTensor
from octavo.formats.spec import F32, AnyArray
from octavo.formats.table import by_name
from octavo.graph.node import Graph, Node
from octavo.huggingface.checkpoint_file import CheckpointFile
from octavo.huggingface.config.wrapper import wrapper_of
from octavo.huggingface.folder import read_folder
from octavo.huggingface.kv_out import cache_scales, cache_scheme
from octavo.huggingface.layouts.kv_scales import is_kv_scale
from octavo.huggingface.schemes import KEY
from octavo.io.atomic import failures_of, new_folder, require_new_folder, require_room
from octavo.io.distinct_paths import BESIDE, MODEL, model_files, require_apart
from octavo.io.gguf import GGUFFile, LazyTensor, write_gguf
from octavo.io.safetensors import StoredTensor, write_safetensors
from octavo.io.safetensors.checkpoint import CONFIG, INDEX
from octavo.io.safetensors.safetensors_writer import TensorHead
from octavo.models import ModelSpec
from octavo.models.shared.config import Config
from octavo.quantizers.schemes.checkpoint_folder import write_objects
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.statistics_file import Statistics

OPTION, KIND, COMPRESSED = "--cache-scales", "fp8", "compressed-tensors"
CAN_HAVE = (COMPRESSED, "fp8")
"""Values of `quant_method` beside which others read such scales."""

StrPath = str | os.PathLike[str]
MAGNITUDES = (".cache_k.max", ".cache_v.max", ".cache_k.clip", ".cache_v.clip")
"""Ends of names; what a file has of them before is left out."""
LEAST = np.float32(1e-6)
"""The least magnitude: a head that was always 0 has one too."""


def require_folder(spec: ModelSpec, file: CheckpointFile, path: StrPath) -> None:
    """Raise UsageError for a checkpoint that has no place for scales, FileError where `path` exists."""
    config = file.folder.checkpoint.config
    if wrapper_of(Config(config, file.path)) is not None:
        problem = "has more than a text model, and its scales would be that one's"
        raise UsageError(f"{file.path} {problem} (allowed: a checkpoint of text alone, or a GGUF file)")
    method = config[KEY].get("quant_method") if isinstance(config.get(KEY), dict) else None
    if file.layout is not None and method not in CAN_HAVE:
        allowed = f"{', '.join(CAN_HAVE)}, none, or a GGUF file"
        raise UsageError(
            f"{file.path} is quantized as {file.layout}, which has no scales of caches (allowed: {allowed})"
        )
    caches = {cache.name: np.ones(1, np.float32) for cache in spec.graph().leaves("cache")}
    cache_scales(spec, caches, KIND, OPTION)
    require_new_folder(path)
    require_room(path, sum(tensor.nbytes for tensor in file.folder.checkpoint.tensors.values()))


def write_folder(spec: ModelSpec, file: CheckpointFile, largest: Mapping[str, F32], path: StrPath) -> None:
    """Write the new folder `path`: all that is in the checkpoint, with scales for `largest`, which take the place of
    those that it has.

    largest  float32 [heads] by cache, as "blk.0.cache_k"

    Raises what `require_folder` raises, and FileError where writing fails.
    """
    require_folder(spec, file, path)
    scales = cache_scales(spec, largest, KIND, OPTION)
    with failures_of(path), new_folder(path) as folder:
        places = _write_tensors(folder, file, scales)
        _write_others(folder, file, places)
        read_folder(folder)


def _write_tensors(folder: str, file: CheckpointFile, scales: Mapping[str, F32]) -> dict[str, str]:
    """Write the files with tensors, scales in the last of them; which tensor is in which."""
    places = dict[str, str]()
    tensors = [t for t in file.folder.checkpoint.tensors.values() if not _is_replaced(t.name)]
    for source in file.files:
        of_file, name = [t for t in tensors if t.file == source], os.path.basename(source)
        more = scales if source == file.files[-1] else {}
        heads = [TensorHead(t.name, t.dtype, t.shape) for t in of_file]
        heads += [TensorHead(name, "F32", values.shape) for name, values in more.items()]
        write_safetensors(os.path.join(folder, name), heads, _arrays(of_file, more))
        places |= {head.name: name for head in heads}
    return places


def _is_replaced(name: str) -> bool:
    return is_kv_scale(name) and not name.endswith("q_scale")


def _arrays(tensors: list[StoredTensor], scales: Mapping[str, F32]) -> Iterator[AnyArray]:
    for tensor in tensors:
        yield tensor.raw()
    yield from scales.values()


def _write_others(folder: str, file: CheckpointFile, places: Mapping[str, str]) -> None:
    """What lies beside the weights, with the configuration and the index as they are now."""
    checkpoint = file.folder.checkpoint
    made: dict[str, dict[str, Any]] = {CONFIG: _config(checkpoint.config)}
    for name in sorted(os.listdir(checkpoint.folder)):
        if name == INDEX:
            size = sum(os.path.getsize(os.path.join(folder, part)) for part in set(places.values()))
            made[INDEX] = {"metadata": {"total_size": size}, "weight_map": places}
        elif name.endswith(BESIDE) and name != CONFIG and os.path.isfile(checkpoint.path(name)):
            shutil.copyfile(checkpoint.path(name), os.path.join(folder, name))
    write_objects(folder, made)


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json that says of the scales."""
    found = config.get(KEY)
    if found is None:
        found = {"quant_method": COMPRESSED, "format": "dense", "config_groups": {}, "ignore": []}
    if found.get("quant_method") == COMPRESSED:
        found = {**found, "kv_cache_scheme": cache_scheme(KIND)}
    return {**config, KEY: found}


def require_scales(spec: ModelSpec, path: str | os.PathLike[str]) -> None:
    """Raise UsageError unless `write_scales` can write this model, FileError for a folder that is not new."""
    if spec.architecture.encoder:
        raise UsageError(f"{spec.file.path}: an embedding model has no KV cache")
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
            raise UsageError(f"{statistics.path}: has no statistics of {cache.name}: it is of another model")
        found[cache.name] = measured
    return found


def _attentions(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "attention"]


def _lazy(file: GGUFFile, name: str) -> LazyTensor:
    tensor = file.tensor(name)

    def load() -> QTensor:
        return file.tensor(name, copy=True)

    return LazyTensor(name, tensor.format, tensor.shape, load)
