"""How a layer's weight is quantized and kept as tensors, in the schemes of `octavo quantize --scheme`."""

from __future__ import annotations

import numpy as np
import torch

from octavo import ops
from octavo.errors import NonFiniteError
from octavo.formats.rows import Scheme, pack_int4
from octavo.huggingface.coded import Coded, planes_of
from octavo.huggingface.schemes import checkpoint_scheme
from octavo.ops.w4a8 import W4A8Weight


def packed(scheme: Scheme) -> bool:
    """Whether the weight is a W4A8Weight's: two codes of 4 bits in a byte."""
    return scheme.bits == 4


def weight_type(scheme: Scheme) -> torch.dtype:
    """Of the stored weight [N, K], or, packed, [N, K / 2]."""
    if packed(scheme):
        return torch.uint8
    return torch.int8 if scheme.kind == "int" else torch.float8_e4m3fn


def quantize_weight(scheme: Scheme, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """A float weight [N, K] rounded to nearest: what is stored, float32 scales [N] and, with groups, float16
    [N, K / 128]."""
    values = weight.detach().float()
    if packed(scheme):
        made = ops.quantize_w4a8(values.cpu().numpy(), 128 if scheme.group else None).to(weight.device)
        return made.packed, made.channel_scale, made.group_scale
    codes, scale = ops.quantize_int8(values, "channel") if scheme.kind == "int" else ops.quantize_fp8(values, "channel")
    return codes, scale.reshape(-1), None


def stored_weight(scheme: Scheme, coded: Coded) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """A weight in a scheme as `quantize_weight` has it."""
    planes, fmt = planes_of(checkpoint_scheme(scheme.name), coded)
    assert planes.d is not None
    scale = torch.from_numpy(np.ascontiguousarray(planes.d[:, 0]))
    if scheme.kind == "float":
        return torch.from_numpy(np.ascontiguousarray(planes.q)).view(torch.float8_e4m3fn), scale, None
    codes = (planes.q - np.uint8(fmt.offset)).view(np.int8)
    if not packed(scheme):
        return torch.from_numpy(codes), scale, None
    groups = None if planes.sc is None else torch.from_numpy(np.ascontiguousarray(planes.sc))
    return torch.from_numpy(pack_int4(codes)), scale, groups


def require_scales(scheme: Scheme, weight: torch.Tensor, scale: torch.Tensor, groups: torch.Tensor | None) -> None:
    """Raise NonFiniteError for scales that are NaN or Inf, QuantFormatError for those too large for 8 bits."""
    if packed(scheme):
        W4A8Weight(weight, scale, groups)
    elif not bool(scale.isfinite().all()):
        raise NonFiniteError("weight_scale holds NaN or Inf")
