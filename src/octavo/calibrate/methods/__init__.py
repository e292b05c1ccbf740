"""Methods: GPTQ and Qronos (`gptq/`), scales of channels (SmoothQuant, AWQ, QQQ, RPTQ), clipping, static scales.

Comes in: weights and samples of what they are multiplied with. Goes out: codes, or scales with which rounded products
err less. Begin with `channel_scales.py`, the methods by name, and `scale_search.py`, which tries what they propose;
`rounding.py` says how numbers are rounded meanwhile.
"""

from octavo.calibrate.methods.channel_scales import METHODS, awq, best_of, qqq, rptq, smoothquant, unless
from octavo.calibrate.methods.clip import Clipped, clip
from octavo.calibrate.methods.rounding import (
    Rounding,
    as_they_are,
    groups_of_weights,
    rows_of_weights,
    tensor_fp8,
    tensor_int8,
    tokens_fp8,
    tokens_int8,
)
from octavo.calibrate.methods.scale_search import ChosenScales, FoldProducts, search
from octavo.calibrate.methods.static_activations import StaticScale, rounded_error, static_scale

__all__ = [
    "METHODS",
    "ChosenScales",
    "Clipped",
    "FoldProducts",
    "Rounding",
    "StaticScale",
    "as_they_are",
    "awq",
    "best_of",
    "clip",
    "groups_of_weights",
    "qqq",
    "rounded_error",
    "rows_of_weights",
    "rptq",
    "search",
    "smoothquant",
    "static_scale",
    "tensor_fp8",
    "tensor_int8",
    "tokens_fp8",
    "tokens_int8",
    "unless",
]
