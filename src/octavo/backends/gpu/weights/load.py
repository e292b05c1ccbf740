"""From stored tensors to weights on the device, some rows at a time on all cores."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.backends.cores import cores
from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import has_kernel
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight, kernel_views
from octavo.backends.gpu.weights.layout import ScaleKind, layout_of, padded
from octavo.backends.gpu.weights.pack import Packed, pack
from octavo.errors import QuantFormatError
from octavo.formats import PlacedQTensor, Planes, QTensor, dequantize, unpack
from octavo.formats.codec import chunks
from octavo.formats.qtensor import TimesQTensor

if TYPE_CHECKING:
    import torch

log = logging.getLogger("octavo")

CHUNK_VALUES = 1 << 22  # values that a thread packs at a time
KINDS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def load(tensor: QTensor, device: str) -> QuantWeight | FloatWeight:
    """A matrix [n, k] or experts [E, n, k] on the device."""
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    n, k = tensor.shape[-2:]
    if tensor.format.is_float:
        return FloatWeight(experts, n, k, _floats(tensor, device).reshape(experts, n, k))
    spans = list(chunks(experts * n, k, CHUNK_VALUES))
    with ThreadPoolExecutor(cores()) as pool:
        packed = _packed(tensor.stored(), spans, pool)
    views = [kernel_views(p) for p in packed]
    parts = {name: _joined([v[name] for v in views], device) for name in views[0]}
    if isinstance(tensor, TimesQTensor):
        parts["factors"] = _joined([tensor.factors[:, None]], device)
    return QuantWeight(packed[0].layout, experts, n, k, parts)


def vector(tensor: QTensor, device: str) -> torch.Tensor:
    """A weight of one dimension as float32."""
    import torch

    return torch.from_numpy(dequantize(tensor)).to(device)


def _packed(tensor: QTensor, parts: list[slice], pool: ThreadPoolExecutor) -> list[Packed]:
    """All parts packed with scales of one kind: the smallest that holds those of every part."""

    def planes(part: slice) -> Planes:
        return unpack(QTensor(tensor.format, (part.stop - part.start, tensor.shape[-1]), tensor.rows(part)))

    packed = list(pool.map(lambda part: pack(planes(part), tensor.format), parts))
    if not all(_finite(p) for p in packed):
        log.warning("tensor %s holds NaN or Inf", tensor.name)
    kinds = {p.layout.scale for p in packed}
    if len(kinds) == 1:
        return packed
    kind: ScaleKind = "f32" if "f32" in kinds else "f16"
    return list(pool.map(lambda part: pack(planes(part), tensor.format, kind), parts))


def _finite(p: Packed) -> bool:
    return all(a is None or a.dtype == np.uint8 or bool(np.isfinite(a).all()) for a in (p.scale, p.minimum))


def _joined(parts: list[Any], device: str) -> torch.Tensor:
    import torch

    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts)).to(device)


def _floats(tensor: QTensor, device: str) -> torch.Tensor:
    import torch

    number = tensor.format.number
    assert number is not None
    if isinstance(tensor, PlacedQTensor):
        placed: torch.Tensor = tensor.placed
        return placed.to(device)
    if number.name not in KINDS:
        return torch.from_numpy(dequantize(tensor)).to(device)
    raw = torch.from_numpy(np.require(tensor.data, requirements="W")).to(device)
    return raw.view(getattr(torch, KINDS[number.name]))


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
