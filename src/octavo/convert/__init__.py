"""Checkpoints of other libraries into GGUF: a Hugging Face folder of safetensors becomes one file that can be run.

It stands above the quantizers: a checkpoint is one more source of tensors for them, so converting to Q4_K_M and
converting to F16 are the same thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.convert.checkpoint import convert_checkpoint

__all__ = ["convert_checkpoint"]


def __getattr__(name: str) -> Any:
    """Public names come from their modules when first used."""
    if name not in __all__:
        raise AttributeError(f"module 'octavo.convert' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("octavo.convert.checkpoint"), name)
