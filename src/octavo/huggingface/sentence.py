"""What a sentence-transformers folder says beside its checkpoint: how vectors of tokens become one of a text."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import FileError
from octavo.huggingface.layouts.stored import stored_tensors
from octavo.io.gguf import LazyTensor
from octavo.io.regular import read_bytes
from octavo.io.safetensors import Checkpoint
from octavo.io.safetensors.json_file import parse_object
from octavo.models.config import Config, Keys

FILE = "modules.json"
MAX_BYTES = 1 << 20
MODES = {"mean_tokens": 1, "mean": 1, "cls_token": 2, "cls": 2, "lasttoken": 3}
"""Numbers of GGUF's `pooling_type`, by what Pooling's configuration calls them."""
IDENTITY = "torch.nn.modules.linear.Identity"
KNOWN = "Transformer, Pooling, Dense, Normalize"
PROJECTIONS = (2, 3)
"""Numbers of the projections that GGUF has names for."""


@dataclass(frozen=True)
class Sentence:
    """Fields of metadata, and tensors by GGUF name."""

    keys: Keys = field(default_factory=dict)
    tensors: dict[str, LazyTensor] = field(default_factory=dict)


def read_sentence(checkpoint: Checkpoint) -> Sentence:
    """The modules that a folder lists; nothing where it lists none.

    Raises FileError for a module that is not known, and one whose configuration has no computation here.
    """
    path = checkpoint.path(FILE)
    if not os.path.exists(path):
        return Sentence()
    modules = parse_object(b'{"modules": ' + read_bytes(path, MAX_BYTES) + b"}", path)["modules"]
    keys: Keys = {}
    tensors: dict[str, LazyTensor] = {}
    for kind, place in _listed(path, modules):
        folder = checkpoint.path(place)
        if kind == "Pooling":
            keys["pooling_type"] = _pooling(os.path.join(folder, "config.json"))
        elif kind == "Dense":
            number = len(tensors) + PROJECTIONS[0]
            if number not in PROJECTIONS:
                raise FileError(f"lists {len(tensors) + 1} projections", file=path, allowed=f"up to {len(PROJECTIONS)}")
            weight = _projection(folder)
            keys |= {f"dense_{number}_feat_{end}": n for end, n in zip(("out", "in"), weight.shape, strict=True)}
            tensors[f"dense_{number}.weight"] = weight
        elif kind not in ("Transformer", "Normalize"):
            raise FileError(f"lists a module {kind[:60]!r}", file=path, allowed=KNOWN)
    return Sentence(keys, tensors)


def _listed(path: str, modules: Any) -> list[tuple[str, str]]:
    """Kind and folder of each module. Raises FileError for what is no list of them, or lies elsewhere."""
    found = []
    for entry in modules if isinstance(modules, list) else [None]:
        kind, place = (entry.get(k) for k in ("type", "path")) if isinstance(entry, dict) else (None, None)
        if not (isinstance(kind, str) and isinstance(place, str) and re.fullmatch(r"[0-9A-Za-z_-]*", place)):
            raise FileError(f"lists {str(entry)[:80]}", file=path, allowed="modules, each with type and path")
        found.append((kind.rpartition(".")[2], place))
    return found


def _pooling(path: str) -> int:
    values = parse_object(read_bytes(path, MAX_BYTES), path)
    named = [k.removeprefix("pooling_mode_") for k, v in values.items() if k.startswith("pooling_mode_") and v is True]
    if isinstance(values.get("pooling_mode"), str):
        named = [values["pooling_mode"]]
    if len(named) != 1 or named[0] not in MODES:
        raise FileError(f"pools by {', '.join(named) or 'nothing'}", file=path, allowed="one of mean, cls, lasttoken")
    return MODES[named[0]]


def _projection(folder: str) -> LazyTensor:
    """The matrix [out, in] of a Dense module."""
    checkpoint = Checkpoint.open(folder)
    path = checkpoint.path("config.json")
    if checkpoint.config.get("bias") is True or (checkpoint.config.get("activation_function", IDENTITY) != IDENTITY):
        raise FileError("has a bias or an activation", file=path, allowed=f"bias false, {IDENTITY}")
    stored = stored_tensors(checkpoint, Config(checkpoint.config, path), lambda name: False)
    if set(stored) != {"linear.weight"} or len(stored["linear.weight"].shape) != 2:
        raise FileError(f"holds {', '.join(stored)[:80]}", file=folder, allowed="linear.weight [out, in]")
    return stored["linear.weight"]
