"""A model's file, whatever it is: what reads folders is imported for one alone, as programs start sooner without."""

from __future__ import annotations

import os

from octavo.io.gguf import GGUFFile
from octavo.io.missing_model import require_there


def open_model_file(path: str | os.PathLike[str]) -> GGUFFile:
    """A GGUF file, or a checkpoint folder. Raises a FileError for what is neither, and for what is not there."""
    require_there(path)
    if not os.path.isdir(path):
        return GGUFFile.open(path)
    from octavo.huggingface.checkpoint_file import CheckpointFile

    return CheckpointFile.open(path)
