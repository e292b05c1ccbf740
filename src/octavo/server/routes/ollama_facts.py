"""What Ollama's routes tell of a model's file: for lists of models, and for /api/show."""

from __future__ import annotations

import hashlib
import math
import os
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np

from octavo.errors import OctavoError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.io.gguf.file_type import file_type
from octavo.models import read_model
from octavo.runtime.options import recommended
from octavo.runtime.output.thinking import thinking_after
from octavo.runtime.text_embedding import is_embedding_model, is_reranker
from octavo.server.model_name import tagged_name
from octavo.sizes import short_count

API_VERSION = "0.12.11"
"""The version of Ollama whose routes are served. Editors refuse to work with one that is older than they know."""
FOREVER = "2318-01-01T00:00:00Z"
"""When a model is unloaded that stays: as Ollama has it, which adds its longest duration to the time."""
NAME, TEMPLATE, PARAMETERS = "general.architecture", "tokenizer.chat_template", "general.parameter_count"
BLOB = re.compile("[0-9a-f]{64}")
FORMATS = {True: "gguf", False: "safetensors"}


def go_time(at: datetime) -> str:
    """A time in UTC as Go writes it."""
    return at.isoformat().replace("+00:00", "Z")


def list_row(name: str, path: str, file: GGUFFile | None = None) -> dict[str, Any]:
    """A row of /api/tags: the model at `path` under a name. `file`: the same, open."""
    return model_row(tagged_name(name), path, file)


def model_row(name: str, path: str, file: GGUFFile | None = None) -> dict[str, Any]:
    """What rows of /api/tags and of /api/ps share."""
    modified, digest = _state(path)
    nbytes, details = _known_at(path, digest) if file is None else (_nbytes(file), details_of(file))
    return {"name": name, "model": name, "modified_at": modified, "size": nbytes, "digest": digest, "details": details}


def details_of(file: GGUFFile) -> dict[str, Any]:
    """A model in a few words."""
    family = str(file.metadata.get(NAME, ""))
    return {
        "parent_model": "", "format": FORMATS[os.path.isfile(file.path)], "family": family, "families": [family],
        "parameter_size": short_count(_parameters(file)), "quantization_level": file_type(file),
    }


@lru_cache(maxsize=1024)
def _known_at(path: str, state: str) -> tuple[int, dict[str, Any]]:
    """Bytes and details of a file that is as its `state` says; of one that can't be read no words."""
    try:
        with open_model_file(path) as file:
            return _nbytes(file), details_of(file)
    except (OctavoError, OSError):
        return 0, {"parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "",
                   "quantization_level": ""}


def shown_model(
    name: str, path: str, file: GGUFFile, n_ctx: int | None, *, verbose: bool, template: str | None = None
) -> dict[str, Any]:
    """The answer of /api/show. `verbose`: with lists such as the vocabulary; `template`: in place of the file's own."""
    source = template if template is not None else file.metadata.get(TEMPLATE)
    settings: dict[str, Any] = {**({} if n_ctx is None else {"num_ctx": n_ctx}), **recommended(file)}
    lines = [f"FROM {name}", *([f'TEMPLATE """{source}"""'] if source else [])]
    info = {key: _plain(file.metadata[key], verbose) for key in file.metadata if key != TEMPLATE}
    told = {"license": str(file.metadata["general.license"])} if "general.license" in file.metadata else {}
    return told | {
        "modelfile": "\n".join([*lines, *(f"PARAMETER {key} {value}" for key, value in settings.items())]),
        "parameters": "\n".join(f"{key:<30} {value}" for key, value in settings.items()),
        "template": source or "", "details": details_of(file), "model_info": {**info, PARAMETERS: _parameters(file)},
        "capabilities": capabilities_of(file, source), "modified_at": _state(path)[0],
    }


def capabilities_of(file: GGUFFile, template: str | None) -> list[str]:
    """What a model can do, by Ollama's words; nothing for one that can't be served."""
    try:
        if is_reranker(file):
            return []
        if is_embedding_model(read_model(file)):
            return ["embedding"]
    except OctavoError:
        return []
    if not template:
        return ["completion"]
    thinks = thinking_after(template, "") is not None
    return ["completion", "tools", *(["thinking"] if thinks else [])]


def _nbytes(file: GGUFFile) -> int:
    return sum(info.nbytes for info in file.tensors.values())


def _parameters(file: GGUFFile) -> int:
    return sum(math.prod(info.shape) for info in file.tensors.values())


def _plain(value: Any, verbose: bool) -> Any:
    """A value of metadata as JSON has it; of lists nothing unless all is wanted."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(one, verbose) for one in value] if verbose else []
    return value


def _state(path: str) -> tuple[str, str]:
    """When a model changed, and its digest: the hub's for a file of its cache, else one of its place, size and time."""
    real = os.path.realpath(path)
    try:
        files = [os.stat(real)] if not os.path.isdir(real) else [
            one.stat() for one in os.scandir(real) if one.is_file() and one.name.endswith((".safetensors", ".gguf"))
        ]
    except OSError:
        files = []
    modified, size = max((one.st_mtime for one in files), default=0.0), sum(one.st_size for one in files)
    name = os.path.basename(real)
    digest = name if BLOB.fullmatch(name) else hashlib.sha256(f"{real}\0{size}\0{modified}".encode()).hexdigest()
    return go_time(datetime.fromtimestamp(modified, UTC)), digest
