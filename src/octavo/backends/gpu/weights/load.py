"""From stored tensors to weights on the device: their bytes are copied there, and unpacked and packed there."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch

from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import has_kernel
from octavo.backends.gpu.weights.device_array import DeviceArray
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight, kernel_views
from octavo.backends.gpu.weights.layout import PlaneLayout, ScaleKind, layout_of, padded
from octavo.backends.gpu.weights.pack import Packed, pack, scale_kind
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
    layout, parts = _packed(tensor, device)
    if isinstance(tensor, TimesQTensor):
        parts["factors"] = torch.from_numpy(tensor.factors[:, None]).to(device)
    return QuantWeight(layout, experts, n, k, parts)


def vector(tensor: QTensor, device: str) -> torch.Tensor:
    """A weight of one dimension as float32."""
    return torch.from_numpy(dequantize(tensor)).to(device)


def device_planes(tensor: QTensor, device: str) -> Iterator[tuple[slice, Planes]]:
    """Some rows after the other, counted through all axes but the last, and their planes, whose arrays are on the
    device."""
    source, k = tensor.in_parts(), tensor.shape[-1]
    for rows in chunks(tensor.size // k, k, CHUNK_VALUES):
        data = DeviceArray(upload(source, device, rows))
        yield rows, unpack(QTensor(tensor.format, (len(data), k), cast(Any, data)))


class Rows:
    """Tensors by name, filled by some rows after the other."""

    def __init__(self, count: int) -> None:
        self._count, self.whole = count, dict[str, torch.Tensor]()

    def put(self, rows: slice, parts: Mapping[str, Any]) -> None:
        """Rows of all tensors, arrays on the device."""
        for name, part in parts.items():
            tensor: torch.Tensor = part.tensor
            if len(tensor) == self._count:
                self.whole[name] = tensor.contiguous()
                continue
            if name not in self.whole:
                self.whole[name] = tensor.new_empty((self._count, *tensor.shape[1:]))
            self.whole[name][rows] = tensor


def _packed(tensor: QTensor, device: str) -> tuple[PlaneLayout, dict[str, torch.Tensor]]:
    """A layout whose kind of scales is the smallest that holds all, and the parts."""
    found = _packed_as(tensor, device, None)
    if found is None:
        kinds = {scale_kind(planes) for _, planes in device_planes(tensor, device)}
        found = _packed_as(tensor, device, "f32" if "f32" in kinds else "f16")
        assert found is not None
    return found


def _packed_as(
    tensor: QTensor, device: str, kind: ScaleKind | None
) -> tuple[PlaneLayout, dict[str, torch.Tensor]] | None:
    """The same with a given kind of scales, or that of the first rows; None where others need another."""
    parts, layouts, finite = Rows(tensor.size // tensor.shape[-1]), set[PlaneLayout](), True
    for rows, planes in device_planes(tensor, device):
        packed = pack(planes, tensor.format, kind)
        layouts.add(packed.layout)
        if len(layouts) > 1:
            return None
        finite = finite and _finite(packed)
        parts.put(rows, kernel_views(packed))
    if not finite:
        log.warning("tensor %s holds NaN or Inf", tensor.name)
    return layouts.pop(), parts.whole


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
    rows = slice(0, tensor.size // tensor.shape[-1])
    return upload(tensor.in_parts(), device, rows).view(getattr(torch, KINDS[number.name]))


def supported(tensor: QTensor) -> tuple[bool, str]:
    """Whether there is a layout for a tensor, and if not, why."""
    if tensor.format.is_float:
        return not isinstance(tensor, TimesQTensor), "no kernel for floats and factors of rows"
    try:
        layout = layout_of(tensor.format, "f16")
        fused = layout.bits == 8 and (layout.float8 or has_kernel(layout, padded(tensor.shape[-1])))
        if isinstance(tensor, TimesQTensor) and fused:
            return False, f"no kernel for {tensor.format.name} and factors of rows"
    except QuantFormatError as error:
        return False, str(error)
    return True, ""
