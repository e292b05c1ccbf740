"""Static scales of the KV cache into a checkpoint: the folder once more, with `k_scale` and `v_scale` of each layer.

They are for fp8, and of all of a layer's keys, or values, which is what vLLM reads (`huggingface.kv_out`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from octavo.errors import UsageError
from octavo.formats.spec import F32, AnyArray
from octavo.huggingface.checkpoint_file import CheckpointFile
from octavo.huggingface.config.wrapper import wrapper_of
from octavo.huggingface.folder import read_folder
from octavo.huggingface.kv_out import cache_scales, cache_scheme
from octavo.huggingface.layouts.kv_scales import is_kv_scale
from octavo.huggingface.schemes import KEY
from octavo.io.apart import BESIDE
from octavo.io.atomic import failures_of, new_folder, require_new_folder, require_room
from octavo.io.safetensors import StoredTensor, write_safetensors
from octavo.io.safetensors.checkpoint import CONFIG, INDEX
from octavo.io.safetensors.safetensors_writer import TensorHead
from octavo.models import ModelSpec
from octavo.models.shared.config import Config

OPTION, KIND, COMPRESSED = "--cache-scales", "fp8", "compressed-tensors"
CAN_HAVE = (COMPRESSED, "fp8")
"""Values of `quant_method` beside which others read such scales."""

StrPath = str | os.PathLike[str]


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
    for name, values in made.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            json.dump(values, out, indent=2, ensure_ascii=False)
            out.write("\n")


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json that says of the scales."""
    found = config.get(KEY)
    if found is None:
        found = {"quant_method": COMPRESSED, "format": "dense", "config_groups": {}, "ignore": []}
    if found.get("quant_method") == COMPRESSED:
        found = {**found, "kv_cache_scheme": cache_scheme(KIND)}
    return {**config, KEY: found}
