"""From stored tensors to weights on the device: their bytes are copied there, and unpacked and packed there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch

from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import has_kernel
from octavo.backends.gpu.weights.device_array import DeviceArray
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight, kernel_views
from octavo.backends.gpu.weights.layout import ScaleKind, layout_of, padded
from octavo.backends.gpu.weights.pack import Packed, pack
from octavo.backends.gpu.weights.upload import upload
from octavo.errors import QuantFormatError
from octavo.formats import PlacedQTensor, Planes, QTensor, dequantize, unpack
from octavo.formats.codec import chunks
from octavo.formats.qtensor import TimesQTensor

log = logging.getLogger("octavo")

CHUNK_VALUES = 1 << 25
"""Values that are unpacked at a time, each of which takes some bytes meanwhile."""
KINDS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def load(tensor: QTensor, device: str) -> QuantWeight | FloatWeight:
    """A matrix [n, k] or experts [E, n, k] on the device."""
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    n, k = tensor.shape[-2:]
    if tensor.format.is_float:
        return FloatWeight(experts, n, k, _floats(tensor, device).reshape(experts, n, k))
    packed = _packed(tensor, device)
    views = [kernel_views(p) for p in packed]
    parts = {name: joined_tensors([cast(Any, v[name]).tensor for v in views]) for name in views[0]}
    if isinstance(tensor, TimesQTensor):
        parts["factors"] = torch.from_numpy(tensor.factors[:, None]).to(device)
    return QuantWeight(packed[0].layout, experts, n, k, parts)


def vector(tensor: QTensor, device: str) -> torch.Tensor:
    """A weight of one dimension as float32."""
    return torch.from_numpy(dequantize(tensor)).to(device)


def device_planes(tensor: QTensor, device: str) -> Iterator[Planes]:
    """The planes of a tensor, whose arrays are on the device, some rows after the other."""
    raw, row = DeviceArray(upload(tensor, device)), tensor.format.row_bytes(tensor.shape[-1])
    for rows in chunks(tensor.size // tensor.shape[-1], tensor.shape[-1], CHUNK_VALUES):
        data = raw[rows.start * row : rows.stop * row].reshape(-1, row)
        yield unpack(QTensor(tensor.format, (len(data), tensor.shape[-1]), cast(Any, data)))


def joined_tensors(parts: list[torch.Tensor]) -> torch.Tensor:
    """Rows one after the other, in memory of their own."""
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)


def _packed(tensor: QTensor, device: str, kind: ScaleKind | None = None) -> list[Packed]:
    """All parts packed with scales of one kind: the smallest that holds those of every part."""
    packed = [pack(planes, tensor.format, kind) for planes in device_planes(tensor, device)]
    kinds = {p.layout.scale for p in packed}
    if len(kinds) > 1:
        return _packed(tensor, device, "f32" if "f32" in kinds else "f16")
    if not all(_finite(p) for p in packed):
        log.warning("tensor %s holds NaN or Inf", tensor.name)
    return packed


def _finite(p: Packed) -> bool:
    return all(a is None or a.dtype == np.uint8 or bool(np.isfinite(a).all()) for a in (p.scale, p.minimum))


def _floats(tensor: QTensor, device: str) -> torch.Tensor:
    number = tensor.format.number
    assert number is not None
    if isinstance(tensor, PlacedQTensor):
        placed: torch.Tensor = tensor.placed
        return placed.to(device)
    if number.name not in KINDS:
        return torch.from_numpy(dequantize(tensor)).to(device)
    return upload(tensor, device).view(getattr(torch, KINDS[number.name]))


def supported(tensor: QTensor) -> tuple[bool, str]:
    """Whether there is a layout for a tensor, and if not, why."""
    if tensor.format.is_float:
        return not isinstance(tensor, TimesQTensor), "no kernel for floats and factors of rows"
    try:
        layout = layout_of(tensor.format, "f16")
        if isinstance(tensor, TimesQTensor) and (layout.float8 or has_kernel(layout, padded(tensor.shape[-1]))):
            return False, f"no kernel for {tensor.format.name} and factors of rows"
    except QuantFormatError as error:
        return False, str(error)
    return True, ""
