"""Numbers to int8 or fp8 on the device, as `octavo.ops.definition` defines it."""

from __future__ import annotations

from typing import Any, Literal

import torch

from octavo.backends.gpu.matmul.w8a8.quantize_kernel import quantize8_kernel
from octavo.errors import UsageError

Granularity = Literal["tensor", "token", "channel", "block"] | int
Fp8 = Literal["e4m3", "e5m2"]

BLOCK = 128
FP8_TYPES: dict[Fp8, torch.dtype] = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
FP8_NAMES = {dtype: name for name, dtype in FP8_TYPES.items()}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def quantize_int8(x: torch.Tensor, granularity: Granularity = "tensor", symmetric: bool = True) -> tuple[Any, ...]:
    """x [M, K] of floats -> codes int8 [M, K], scales float32 and, unless symmetric, zero points int32.

    Scales are [] for "tensor", [M, 1] for "token" or "channel", [M, K / g] for groups of g. Raises UsageError for
    anything else.
    """
    x = _checked(x, granularity)
    if granularity == "block":
        raise UsageError("granularity 'block' of int8 (allowed: 'tensor', 'token', 'channel', or values of a group)")
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    if granularity == "tensor" and not symmetric:
        scale, zero = _affine(x)
    else:
        scale, zero = _scales(x, granularity, 127.0), None
        if not symmetric:
            zero = torch.empty(scale.shape, dtype=torch.int32, device=x.device)
    _launch(x, codes, scale, zero, granularity, 127.0, "int8" if symmetric else "zero")
    return (codes, scale) if zero is None else (codes, scale, zero)


def quantize_fp8(
    x: torch.Tensor, kind: Fp8 = "e4m3", granularity: Granularity = "tensor"
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] of floats -> float8_e4m3fn or float8_e5m2 [M, K], and scales float32.

    Scales are those of `quantize_int8`, or of "block" [ceil(M / 128), ceil(K / 128)]. Raises UsageError for anything
    else.
    """
    if kind not in FP8_TYPES:
        raise UsageError(f"fp8 type {kind!r} (allowed: {', '.join(FP8_TYPES)})")
    x = _checked(x, granularity)
    top = float(torch.finfo(FP8_TYPES[kind]).max)
    codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = _scales(x, granularity, top)
    _launch(x, codes, scale, None, granularity, top, kind)
    return codes.view(FP8_TYPES[kind]), scale


def _checked(x: torch.Tensor, granularity: Granularity) -> torch.Tensor:
    if x.ndim != 2 or x.dtype not in FLOATS:
        raise UsageError(f"x is {x.dtype} {list(x.shape)} (allowed: float32, float16 or bfloat16 [M, K])")
    if isinstance(granularity, int):
        if granularity < 1 or x.shape[1] % granularity:
            raise UsageError(f"groups of {granularity} (allowed: what divides K = {x.shape[1]})")
    elif granularity not in ("tensor", "token", "channel", "block"):
        raise UsageError(f"granularity {granularity!r} (allowed: 'tensor', 'token', 'channel', 'block', or a number)")
    return x if x.shape[1] < 2 or x.stride(1) == 1 else x.contiguous()


def _scales(x: torch.Tensor, granularity: Granularity, top: float) -> torch.Tensor:
    """The scales of all or of blocks; of rows and groups memory for them."""
    if granularity == "tensor":
        largest = x.abs().amax().float() if x.numel() else x.new_zeros((), dtype=torch.float32)
        return largest / torch.full_like(largest, top)
    if granularity == "block":
        rows, k = x.shape
        padded = torch.nn.functional.pad(x.abs(), (0, -k % BLOCK, 0, -rows % BLOCK))
        largest = padded.view(-(-rows // BLOCK), BLOCK, -(-k // BLOCK), BLOCK).amax(dim=(1, 3)).float()
        return largest / torch.full_like(largest, top)
    groups = x.shape[1] // granularity if isinstance(granularity, int) else 1
    return torch.empty((len(x), groups), dtype=torch.float32, device=x.device)


def _affine(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and the zero point of all values."""
    some = torch.zeros(1, dtype=torch.float32, device=x.device)
    values = torch.cat([some, *((e.float().view(1) for e in x.aminmax()) if x.numel() else ())])
    low, high = values.aminmax()
    steps = torch.full_like(low, 255)
    scale = high / steps - low / steps
    zero = torch.where(scale > 0, torch.round(-low / torch.where(scale > 0, scale, 1)), 0).clamp(0, 255)
    return scale, (zero - 128).to(torch.int32)


def _launch(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, granularity: Granularity,
    top: float, kind: str,
) -> None:
    rows, k = x.shape
    if not x.numel():
        scale.zero_()
        return
    size = granularity if isinstance(granularity, int) else BLOCK if granularity == "block" else k
    shared = {"tensor": rows, "block": BLOCK}.get(str(granularity), 1)
    width = min(1024, 1 << (size - 1).bit_length())
    quantize8_kernel[rows, -(-k // size)](
        x, x.stride(0), codes, scale, zero, k, size, shared, top, KIND=kind, GIVEN=granularity in ("tensor", "block"),
        B=width, num_warps=max(1, width // 256), enable_fp_fusion=False,
    )
