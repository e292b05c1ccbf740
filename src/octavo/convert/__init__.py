"""Checkpoints of other libraries into GGUF: a Hugging Face folder of safetensors becomes one file that can be run.

It stands above the quantizers: a checkpoint is one more source of tensors for them, so converting to Q4_K_M and
converting to F16 are the same thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.convert.checkpoint import convert_checkpoint

__all__ = ["convert_checkpoint"]

__getattr__ = names_from(__name__, {"convert_checkpoint": "octavo.convert.checkpoint"})
