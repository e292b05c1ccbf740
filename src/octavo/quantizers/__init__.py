"""Making quantized weights: encoders for every block format, with and without importance weights.

    packed = octavo.quantizers.encode(values, "Q4_K", importance=imatrix)      # [rows, K] -> uint8 [rows, bytes]
    report = octavo.quantizers.quantize_file("f16.gguf", "q4.gguf", "Q4_K_M")  # a whole model

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.quantizers.encoder import ENCODABLE, encode
    from octavo.quantizers.job import quantize_file
    from octavo.quantizers.mixing import Choices
    from octavo.quantizers.presets import PRESETS, Preset
    from octavo.quantizers.report import Report

__all__ = ["ENCODABLE", "PRESETS", "Choices", "Preset", "Report", "encode", "quantize_file"]

_HOME = {
    "ENCODABLE": "octavo.quantizers.encoder",
    "PRESETS": "octavo.quantizers.presets",
    "Choices": "octavo.quantizers.mixing",
    "Preset": "octavo.quantizers.presets",
    "Report": "octavo.quantizers.report",
    "encode": "octavo.quantizers.encoder",
    "quantize_file": "octavo.quantizers.job",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'octavo.quantizers' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
