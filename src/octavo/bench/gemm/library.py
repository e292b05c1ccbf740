"""The vendor's products on a GPU, through torch, for the ratio."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from octavo.bench.gemm.gemm_subject import Calls
from octavo.formats.spec import F32

LEAST_INT8 = 17
"""Tokens that torch's int8 product takes at least."""


def calls(scheme: str, x: F32, w: F32, placed: tuple[Any, ...], copies: int) -> dict[str, Calls]:
    """What a scheme's product is set next to: by name, calls of it, one for each copy of the weights.

    int8 and fp8 stand next to the vendor's of the same numbers where it has one, without any epilogue for int8; and all
    next to float16.
    """
    vendor = "hipBLASLt" if torch.version.hip else "cuBLASLt"
    fits = x.shape[1] % 16 == 0 and len(w) % 16 == 0
    a, weight = placed[0], placed[1]
    found: dict[str, Calls] = {}
    if scheme == "int8" and len(x) >= LEAST_INT8 and fits:
        found[f"{vendor} int8"] = [partial(torch._int_mm, a, weight.t())]
    if scheme == "fp8" and fits and _has_fp8() and torch.float8_e5m2 not in (a.dtype, weight.dtype):
        scale_a, scale_b = placed[2].reshape(-1, 1).expand(len(x), 1).contiguous(), placed[3].reshape(1, -1)
        multiply = partial(torch._scaled_mm, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)
        found[f"{vendor} fp8"] = [partial(multiply, a, each.t()) for each in _copies(weight, copies)]
    half, weights = torch.from_numpy(x).to(a.device).half(), torch.from_numpy(w).to(a.device).half()
    found[f"{vendor} float16"] = [partial(torch.matmul, half, each.t()) for each in _copies(weights, copies)]
    return found


def _has_fp8() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def _copies(weights: torch.Tensor, copies: int) -> list[torch.Tensor]:
    return [weights, *(weights.clone() for _ in range(copies - 1))]
