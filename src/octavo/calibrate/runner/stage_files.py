"""Files of a run's folder: what a stage came to, arrays and what is told of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from octavo.errors import FileError
from octavo.formats.spec import AnyArray
from octavo.io.atomic import written_file
from octavo.io.safetensors import SafetensorsFile, TensorHead, write_safetensors

ABOUT = "octavo"
_KINDS = {"float32": "F32", "uint8": "U8"}


def stage_path(folder: str, number: int) -> str:
    """The file of a stage."""
    return os.path.join(folder, f"stage-{number}.safetensors")


def stage_files(folder: str, first: int) -> Iterator[tuple[SafetensorsFile, Any]]:
    """The files of the stages before `first` that have one, as `read_file` gives them."""
    for number in range(first):
        if os.path.exists(path := stage_path(folder, number)):
            yield read_file(path)


def write_file(path: str, arrays: Mapping[str, AnyArray], about: object) -> None:
    """Write arrays of float32 and uint8, and what JSON holds of them, whole or not at all. Raises FileError."""
    heads = [TensorHead(name, _KINDS[str(x.dtype)], x.shape) for name, x in arrays.items()]
    with written_file(path) as temporary:
        write_safetensors(temporary, heads, map(np.ascontiguousarray, arrays.values()), {ABOUT: json.dumps(about)})


def read_file(path: str) -> tuple[SafetensorsFile, Any]:
    """A file and what is told in it. Raises FileError for one that is not as it was written."""
    file = SafetensorsFile.open(path)
    try:
        return file, json.loads(file.metadata[ABOUT])
    except (KeyError, ValueError):
        raise FileError("is not what a run keeps", file=path, field=ABOUT, allowed="to begin anew") from None
