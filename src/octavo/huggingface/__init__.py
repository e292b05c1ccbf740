"""Checkpoint folders of Hugging Face's libraries: read as if they were GGUF files, and written.

    file = octavo.huggingface.open_model_file("Qwen3-0.6B-W8A8")  # what a GGUFFile has: metadata, tensors by GGUF name

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.formats.rows import SCHEMES, Scheme
    from octavo.huggingface.checkpoint_file import CheckpointFile
    from octavo.huggingface.model_file import open_model_file

__all__ = ["SCHEMES", "CheckpointFile", "Scheme", "open_model_file"]

__getattr__ = names_from(__name__, {
    "octavo.formats.rows": ["SCHEMES", "Scheme"],
    "octavo.huggingface.checkpoint_file": ["CheckpointFile"],
    "octavo.huggingface.model_file": ["open_model_file"],
})
