"""Files of a run's folder: what a stage came to, in dataclasses, mappings and sequences, with the arrays in them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from octavo.errors import FileError
from octavo.formats.spec import AnyArray
from octavo.io.atomic import written_file
from octavo.io.safetensors import SafetensorsFile, TensorHead, write_safetensors
from octavo.quantizers.job.quantization_record import JsonReader

T = TypeVar("T")

ABOUT = "octavo"
_KINDS = {"float32": "F32", "uint8": "U8"}


def stage_path(folder: str, number: int) -> str:
    """The file of a stage."""
    return os.path.join(folder, f"stage-{number}.safetensors")


def stage_files(folder: str, first: int, kind: type[T]) -> Iterator[T]:
    """What files of the stages before `first` hold, where there are some, as `read_file` gives it."""
    for number in range(first):
        if os.path.exists(path := stage_path(folder, number)):
            yield read_file(path, kind)


def write_file(path: str, values: object) -> None:
    """Write values, whole or not at all; arrays are of float32 and uint8. Raises FileError."""
    arrays = {"none": np.zeros(1, np.float32)}
    about = json.dumps(_apart(values, arrays))
    heads = [TensorHead(name, _KINDS[str(x.dtype)], x.shape) for name, x in arrays.items()]
    with written_file(path) as temporary:
        write_safetensors(temporary, heads, map(np.ascontiguousarray, arrays.values()), {ABOUT: about})


def _apart(value: Any, arrays: dict[str, AnyArray]) -> Any:
    """A value as JSON has it, the arrays in it under names of their own."""
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = value
        return name
    if is_dataclass(value):
        return {f.name: _apart(getattr(value, f.name), arrays) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _apart(each, arrays) for key, each in value.items()}
    return value if value is None or isinstance(value, str | int | float) else [_apart(x, arrays) for x in value]


def read_file(path: str, kind: type[T]) -> T:
    """Values of a type as they were written, those of a `Sequence` whenever one is asked for.

    Raises FileError for a file that is not as it was written.
    """
    file = SafetensorsFile.open(path)

    def array(name: str) -> AnyArray:
        found = file.tensors[name]
        return found.floats() if found.dtype == "F32" else found.array()

    try:
        return JsonReader(path, array).read(kind, json.loads(file.metadata[ABOUT]))
    except (KeyError, ValueError, TypeError):
        raise FileError("is not what a run keeps", file=path, field=ABOUT, allowed="to begin anew") from None
