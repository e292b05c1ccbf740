"""Files that come with the package."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from octavo.errors import UsageError


def demo_model_path() -> Path:
    """The demo model: an F16 GGUF file of a small Qwen3 calculator (see docs/demo-model.md)."""
    return Path(resolve("demo"))


DRAFTERS = ("demo-mtp", "demo-eagle3", "demo-draft")
"""What drafts for the demo model, each a GGUF file: an MTP head, an EAGLE-3 head, and a model of two layers."""


def resolve(path: str | os.PathLike[str]) -> str:
    """The path of a model: "demo" and DRAFTERS are in the package. Raises UsageError for what is not a path."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise UsageError(f"path is {path!r} (allowed: a text or a Path)", argument="path")
    found = os.fspath(path)
    return str(files(__name__) / f"{found}.gguf") if found == "demo" or found in DRAFTERS else found
