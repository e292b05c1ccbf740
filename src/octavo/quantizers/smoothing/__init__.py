"""Scales of channels with which rounded products err less: SmoothQuant, AWQ, QQQ's threshold; and clipping."""

from octavo.quantizers.smoothing.clip import Clipped, clip
from octavo.quantizers.smoothing.methods import METHODS, awq, best_of, outlier_threshold, rptq, smoothquant, unless
from octavo.quantizers.smoothing.pair import Found, Pair, search
from octavo.quantizers.smoothing.rounding import (
    Rounding,
    as_they_are,
    groups_of_weights,
    rows_of_weights,
    tensor_fp8,
    tensor_int8,
    tokens_fp8,
    tokens_int8,
)
from octavo.quantizers.smoothing.static import StaticScale, rounded_error, static_scale

__all__ = [
    "METHODS", "Clipped", "Found", "Pair", "Rounding", "StaticScale", "as_they_are", "awq", "best_of", "clip",
    "groups_of_weights", "outlier_threshold", "rounded_error", "rows_of_weights", "rptq", "search", "smoothquant",
    "static_scale", "tensor_fp8", "tensor_int8", "tokens_fp8", "tokens_int8", "unless",
]
