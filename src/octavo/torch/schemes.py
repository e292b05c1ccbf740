"""How a layer's weight is quantized and kept as tensors, in the schemes of `octavo quantize --scheme`.

Where activations are quantized by token, codes and scales are tensors of their own, as `octavo.ops` takes them. Where
they stay floats, and in fp8-block, whose products take them as floats too, a weight lies in rows of a block format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from octavo import ops
from octavo.errors import NonFiniteError
from octavo.formats import Planes, QTensor, pack, unpack
from octavo.formats.group import group_format, group_of
from octavo.formats.rows import pack_int4
from octavo.huggingface.scheme_weight import Coded, nearest, planes_of, row_parts
from octavo.huggingface.schemes import CheckpointScheme
from octavo.ops.w4a8 import W4A8Weight
from octavo.torch import packed_linear

Product = Literal["int8", "w4a8", "fp8", "stored"]
"""What multiplies a weight: an operator's name without "_gemm"."""


@dataclass(frozen=True, eq=False)
class Parts:
    """A weight [N, K] as a layer keeps it.

    weight  int8 or float8_e4m3fn [N, K]; of 4-bit codes uint8 [N, K / 2]; stored rows uint8 [N, bytes of a row]
    scale   float32 [N], of rows; [], of all stored values; None: they need none
    groups  float16 [N, K / 128] under those of rows, or None
    """

    weight: Tensor
    scale: Tensor | None
    groups: Tensor | None = None


def product_of(scheme: CheckpointScheme) -> Product:
    """What multiplies weights of a scheme."""
    if scheme.activation == "f32":
        return "stored"
    if scheme.kind == "float":
        return "fp8"
    return "int8" if scheme.bits == 8 else "w4a8"


def stored_row(scheme: CheckpointScheme, k: int) -> str:
    """The format of stored rows of `k` values, whose scales belong to whole rows in some schemes: those are there once
    for each group."""
    if scheme.strategy != "channel":
        return scheme.format(k).name
    group = group_of(k, least=32)
    assert group is not None
    return group_format(scheme.bits, group, "F32").name


def empty(scheme: CheckpointScheme, n: int, k: int, device: torch.device | str | None) -> Parts:
    """The parts of a weight [n, k] of zeros."""

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    product = product_of(scheme)
    if product == "stored":
        nbytes = packed_linear.row_format(stored_row(scheme, k)).row_bytes(k)
        whole = torch.ones((), device=device) if scheme.strategy == "tensor_group" else None
        return Parts(zeros(n, nbytes, dtype=torch.uint8), whole)
    if product == "w4a8":
        groups = zeros(n, k // scheme.group, dtype=torch.float16) if scheme.group else None
        return Parts(zeros(n, k // 2, dtype=torch.uint8), zeros(n), groups)
    codes = zeros(n, k, dtype=torch.uint8)
    return Parts(codes.view(torch.int8 if product == "int8" else torch.float8_e4m3fn), zeros(n))


def quantize_weight(scheme: CheckpointScheme, weight: Tensor) -> Parts:
    """A float weight [N, K] rounded to nearest."""
    values, product = weight.detach().float(), product_of(scheme)
    if product == "stored":
        return stored_weight(scheme, nearest(scheme, values.cpu().numpy()))
    if product == "w4a8":
        made = ops.quantize_w4a8(values.cpu().numpy(), 128 if scheme.group else None).to(weight.device)
        return Parts(made.packed, made.channel_scale, made.group_scale)
    codes, scale = ops.quantize_int8(values, "channel") if product == "int8" else ops.quantize_fp8(values, "channel")
    return Parts(codes, scale.reshape(-1))


def stored_weight(scheme: CheckpointScheme, coded: Coded) -> Parts:
    """A weight in a scheme as `quantize_weight` has it."""
    planes, fmt = planes_of(scheme, coded)
    d = planes.d
    assert d is not None
    if product_of(scheme) == "stored":
        row = packed_linear.row_format(stored_row(scheme, coded.q.shape[1]))
        if row is not fmt:
            planes = Planes(planes.q, d=np.repeat(d, coded.q.shape[1] // row.group, axis=1))
        whole = torch.tensor(1 / coded.factor, dtype=torch.float32) if scheme.strategy == "tensor_group" else None
        return Parts(torch.from_numpy(pack(planes, row)), whole)
    scale = torch.from_numpy(np.ascontiguousarray(d[:, 0]))
    if scheme.kind == "float":
        return Parts(torch.from_numpy(np.ascontiguousarray(planes.q)).view(torch.float8_e4m3fn), scale)
    codes = (planes.q - np.uint8(fmt.offset)).view(np.int8)
    if product_of(scheme) == "int8":
        return Parts(torch.from_numpy(codes), scale)
    groups = None if planes.sc is None else torch.from_numpy(np.ascontiguousarray(planes.sc))
    return Parts(torch.from_numpy(pack_int4(codes)), scale, groups)


def dequantize(scheme: CheckpointScheme, parts: Parts, k: int) -> Tensor:
    """The values [N, K] that products are computed with, float32 on the parts' device."""
    product = product_of(scheme)
    if product == "stored":
        values = packed_linear.dequantize(parts.weight, stored_row(scheme, k))
        return values if parts.scale is None else values * parts.scale
    assert parts.scale is not None
    if product == "w4a8":
        values = torch.from_numpy(W4A8Weight(parts.weight, parts.scale, parts.groups).dequantize())
        return values.to(parts.weight.device)
    return parts.weight.float() * parts.scale[:, None]


def require_scales(scheme: CheckpointScheme, parts: Parts, k: int) -> None:
    """Raise NonFiniteError for scales that are NaN or Inf, QuantFormatError for those too large for 8 bits."""
    if parts.scale is not None and not bool(parts.scale.isfinite().all()):
        raise NonFiniteError("weight_scale holds NaN or Inf")
    product = product_of(scheme)
    if product == "w4a8":
        W4A8Weight(parts.weight, parts.scale, parts.groups)
    elif product == "stored":
        tensor = packed_linear.stored(parts.weight, stored_row(scheme, k))
        for rows in row_parts(*tensor.shape):
            found = unpack(QTensor(tensor.format, (rows.stop - rows.start, k), tensor.rows(rows))).d
            if found is not None and not np.isfinite(found).all():
                raise NonFiniteError("the weight's scales hold NaN or Inf")
