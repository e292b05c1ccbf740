"""Making quantized weights: encoders for every block format, with and without importance weights.

    packed = octavo.quantizers.encode(values, "Q4_K", importance=imatrix)      # [rows, K] -> uint8 [rows, bytes]

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.quantizers.encoder import ENCODABLE, encode

__all__ = ["ENCODABLE", "encode"]

_HOME = {
    "ENCODABLE": "octavo.quantizers.encoder",
    "encode": "octavo.quantizers.encoder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'octavo.quantizers' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
