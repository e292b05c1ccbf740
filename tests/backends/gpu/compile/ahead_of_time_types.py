"""What several tables of kernels say of their arguments."""

from __future__ import annotations

from typing import Any

from octavo.backends.gpu.launch.arguments import Matrix, Q8Activation, Source
from octavo.backends.gpu.weights.layout import PlaneLayout, ScaleKind, layout_of
from octavo.formats.group import row_named

Kernels = dict[str, tuple[Any, dict[str, Any], int, dict[str, Any]]]
"""By name: a kernel, constants, warps, types that differ from NAMES."""

NAMES = {
    "x": "*fp32", "y": "*fp32", "out": "*fp32", "weight": "*fp32", "weights": "*fp32", "other": "*fp32", "a": "*fp32",
    "b": "*fp32", "q": "*fp32", "k": "*fp32", "v": "*fp32", "freqs": "*fp32", "q_norm": "*fp32", "k_norm": "*fp32",
    "d": "*fp32", "s": "*fp32", "s16": "*fp32", "xd": "*fp32", "xs": "*fp32", "xs16": "*fp32", "term0": "*fp32",
    "term1": "*fp32", "shares": "*fp32", "finished": "*i32", "sums": "*fp32",
    "floats": "*fp32", "scales": "*fp32",
    "halves": "*fp16", "codes": "*i8", "ids": "*i32", "rows": "*i32", "positions": "*i32", "starts": "*i32",
    "k_cache": "*fp16", "v_cache": "*fp16", "k_scales": "*fp16", "v_scales": "*fp16", "cache": "*fp16",
    "w": "*fp16", "table": "*fp32", "values": "*fp32", "minimum": "*i32", "small": "*i16", "rest": "*i8",
    "order": "*i32", "counts": "*i32", "eps": "fp32", "scale": "fp32", "cap": "fp32",
    "factor": "fp32",
}
ROWS = Matrix("*fp32", "i32")
SOURCE = Source(Matrix("*fp32", "i32"), Matrix("*fp32", "i32"), "fp32")
Q8 = Q8Activation("*i8", "*fp32", "*fp32", "*fp32", "i32")


def layout_named(name: str) -> PlaneLayout:
    """Of a format's name, or of one with the kind of its scales, as TQ2_0-exponent, which are BitNet's."""
    name, _, kind = name.partition("-")
    scale: ScaleKind = kind or ("exponent" if name == "MXFP4" else "f16")  # type: ignore[assignment]
    return layout_of(row_named(name), scale)
