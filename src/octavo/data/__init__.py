"""Files that come with the package."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from octavo.errors import UsageError


def demo_model_path() -> Path:
    """The demo model: an F16 GGUF file of a small Qwen3 calculator (see docs/demo-model.md)."""
    return Path(str(files(__name__) / "demo.gguf"))


def resolve(path: str | os.PathLike[str]) -> str:
    """The path of a model: "demo" is the one in the package. Raises UsageError for what is not a path."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise UsageError(f"path is {path!r} (allowed: a text or a Path)", argument="path")
    return os.fspath(demo_model_path() if os.fspath(path) == "demo" else path)
