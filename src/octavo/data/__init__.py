"""Files that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def demo_model_path() -> Path:
    """The demo model: an F16 GGUF file of a small Qwen3 calculator (see docs/demo-model.md)."""
    return Path(str(files(__name__) / "demo.gguf"))
