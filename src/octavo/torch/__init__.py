"""Quantized layers for models in torch, and the products behind them as operators that torch.compile knows.

    model = octavo.torch.quantize_(model, "int8-w8a8")      # every nn.Linear but the head, in place
    layer = octavo.torch.QuantLinear.from_linear(linear, "w4a8-g128")
    octavo.torch.quantize_(model, "w4a8", method="qqq", calibration=batches, folds=octavo.torch.folds_of(model))
    y = octavo.torch.int8_gemm(a, b, scale_a, scale_b)      # torch.ops.octavo.int8_gemm

Importing this imports torch; the rest of the package does not need it.
"""

from __future__ import annotations

from importlib.util import find_spec

from octavo.errors import INSTALL_GPU, BackendError

if find_spec("torch") is None:
    raise BackendError(f"octavo.torch: torch is not installed ({INSTALL_GPU})")

from octavo.huggingface.schemes import CHECKPOINT_SCHEMES as SCHEMES
from octavo.torch.folds import Fold
from octavo.torch.known import folds_of
from octavo.torch.linear import QuantLinear
from octavo.torch.operators import (
    fp8_gemm,
    int8_gemm,
    quantize_fp8,
    quantize_int8,
    quantize_int8_zero,
    stored_gemm,
    w4a8_gemm,
)
from octavo.torch.quantize import quantize_

__all__ = [
    "SCHEMES",
    "Fold",
    "QuantLinear",
    "folds_of",
    "fp8_gemm",
    "int8_gemm",
    "quantize_",
    "quantize_fp8",
    "quantize_int8",
    "quantize_int8_zero",
    "stored_gemm",
    "w4a8_gemm",
]
