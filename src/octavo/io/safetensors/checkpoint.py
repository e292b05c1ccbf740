"""A checkpoint folder as Hugging Face lays it out: config.json, and the weights in one safetensors file or in several.

Several files come with model.safetensors.index.json, whose `weight_map` says which tensor is in which.
"""

from __future__ import annotations

import os
from typing import Any

from octavo.errors import FileError, shown
from octavo.io.foreign import ADAPTER_CONFIG, adapter
from octavo.io.safetensors.json_file import read_json
from octavo.io.safetensors.safetensors_file import SafetensorsFile, StoredTensor

INDEX, SINGLE, CONFIG = "model.safetensors.index.json", "model.safetensors", "config.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_FILES = 4096
MAX_CONFIG_BYTES = 1 << 24


class Checkpoint:
    """The checkpoint in a folder: `config` (of config.json) and `tensors` by name."""

    def __init__(self, folder: str, config: dict[str, Any], tensors: dict[str, StoredTensor]) -> None:
        self.folder, self.config, self.tensors = folder, config, tensors

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Checkpoint:
        """Raises FileError for a folder without a config or weights, for adapters and pickles, and for wrong files."""
        path = os.fsdecode(folder)
        names = _names(path)
        if ADAPTER_CONFIG in names and INDEX not in names and SINGLE not in names:
            base = read_json(os.path.join(path, ADAPTER_CONFIG), MAX_CONFIG_BYTES).get("base_model_name_or_path")
            raise FileError(adapter(base), file=path)
        if CONFIG not in names:
            raise _no_config(path, names)
        config = read_json(os.path.join(path, CONFIG), MAX_CONFIG_BYTES)
        if INDEX in names:
            return cls(path, config, _sharded(path, names))
        if SINGLE in names:
            return cls(path, config, SafetensorsFile.open(os.path.join(path, SINGLE)).tensors)
        raise _no_weights(path, names)

    def json(self, name: str) -> dict[str, Any] | None:
        """The JSON object in the folder's file `name`, a configuration; None where there is no such file."""
        path = self.path(name)
        return read_json(path, MAX_CONFIG_BYTES) if os.path.exists(path) else None

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise FileError(f"can't be opened as a folder: {error.strerror}", file=path) from None


def _no_config(path: str, names: list[str]) -> FileError:
    files = [os.path.join(path, name) for name in names if name.endswith(".gguf")]
    if not files:
        return FileError(f"has no {CONFIG}, so it is neither a checkpoint nor a GGUF file", file=path)
    named = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    return FileError(f"has no {CONFIG}, so it is not a checkpoint; give the GGUF file in it: {named}", file=path)


def _no_weights(path: str, names: list[str]) -> FileError:
    wanted = f"{SINGLE}, or {INDEX} and its files"
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        problem = "is a pickle, which could run code, and is refused"
        return FileError(problem, file=os.path.join(path, pickles[0]), allowed=wanted)
    return FileError("has no weights", file=path, allowed=wanted)


def _sharded(path: str, names: list[str]) -> dict[str, StoredTensor]:
    index = os.path.join(path, INDEX)
    places = read_json(index).get("weight_map")
    if not (isinstance(places, dict) and places and all(isinstance(name, str) for name in places.values())):
        raise FileError("is not a map of tensors to files", file=index, field="weight_map", allowed="names of files")
    files = sorted(set(places.values()))
    if len(files) > MAX_FILES:
        raise FileError(f"names {len(files)} files", file=index, field="weight_map", allowed=f"at most {MAX_FILES}")
    for name in files:
        if name not in names:  # so there is no way out of the folder
            problem = "is a pickle, and is refused" if name.endswith(PICKLES) else "is not in the folder"
            raise FileError(f"{shown(name)} {problem}", file=index, field="weight_map", allowed="files beside it")
    found: dict[str, StoredTensor] = {}
    for name in files:
        for tensor in SafetensorsFile.open(os.path.join(path, name)).tensors.values():
            if places.get(tensor.name) != name:
                said = places.get(tensor.name, "no file")
                raise FileError(f"tensor {shown(tensor.name)} belongs to {said}", file=tensor.file, allowed="the index")
            found[tensor.name] = tensor
    missing = next((name for name in places if name not in found), None)
    if missing is not None:
        raise FileError("is missing", file=os.path.join(path, places[missing]), field=f"tensor {shown(missing)}")
    return found
