"""Rows of a format as tensors of torch: their values, and plain encoders of rows of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.backends.gpu.calibration.clip_search import clip_search
from octavo.calibrate.arrays import VALUES, each_plane, gather, on_device, repeat
from octavo.calibrate.row_batches import made_in_parts
from octavo.formats import BlockFormat, Planes, QTensor, dequantize
from octavo.formats import encoders as plain
from octavo.formats.codec import require_finite
from octavo.quantizers.matrix_tiles import spans

_planes: Any = Planes  # of tensors here
STORED = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
"""Types of scales, by their fields'."""


def finite_values(stored: QTensor, device: torch.device | str, label: str) -> Tensor:
    """A stored tensor's values as float32 on a device; floats are copied as they are stored.

    Raises NonFiniteError, with a label for the tensor, at the first NaN or Inf.
    """
    number = stored.format.number
    kind = STORED.get(number.name) if stored.format.is_float and number is not None else None
    if kind is None:
        values: Tensor = on_device(dequantize(stored), device)
    else:
        values = on_device(stored.stored().data, device).view(kind).float()
    if not bool(torch.isfinite(values).all()):
        require_finite(values.cpu().numpy(), label)
    return values


def encoder_of(fmt: BlockFormat) -> Callable[[Tensor], Planes] | None:
    """The encoder of rows [N, K] that gives what `quantize_reference` does; None where there is none for tensors."""
    kind = next((field.kind for field in fmt.fields if field.name == "d"), None)
    found = _ENCODERS.get(fmt.encode)
    return None if found is None or fmt.number is not None or kind not in STORED else partial(found, fmt)


def searched(rows: Tensor, fmt: BlockFormat, weights: Tensor, shrinks: Sequence[float]) -> Planes:
    """Rows [N, K] by an encoder that there is for them, each group clipped to that of `shrinks` parts of its range
    which leaves the least error, weighted by `weights` [K]."""
    encoder, weighing = encoder_of(fmt), weights.view(-1, fmt.group)
    assert encoder is not None
    assert fmt.encode is not None
    kind = fmt.encode.__name__
    if not len(rows):
        return encoder(rows)

    def one(part: slice) -> Planes:
        groups = rows[part].view(-1, rows.shape[1] // fmt.group, fmt.group)
        share = clip_search(groups, weighing, shrinks, kind, fmt.fields[0].kind, fmt.bits)[..., None]
        low, high = groups.aminmax(dim=2, keepdim=True)
        clipped = groups.clamp(low.clamp(max=0) * share, high.clamp(min=0) * share)
        return encoder(clipped.view_as(rows[part]))

    found = made_in_parts(spans(len(rows), max(1, VALUES // rows.shape[1])), one)
    return found[0] if len(found) == 1 else each_plane(lambda *each: torch.cat(each), *found)


def decoded(planes: Any, fmt: BlockFormat) -> Tensor:
    """float32 values [N, K] of planes: d * sc * code(q) - dmin * m, as `octavo.formats.decode` has them."""
    q, d, sc, dmin, m = planes.q, planes.d, planes.sc, planes.dmin, planes.m
    (n, k), supers = q.shape, fmt.super // fmt.group
    table = np.array(fmt.table or (), np.float32) * np.float32(fmt.step)
    code: Tensor = gather(table, q) if fmt.table else q.float().sub_(fmt.offset)
    groups = code.view(n, k // fmt.group, fmt.group)
    if fmt.has_zero:
        groups -= m[..., None].float()
    step = repeat(d, supers)
    groups *= (step if sc is None else step * sc.float())[..., None]
    if dmin is not None:
        low = repeat(dmin, supers)
        groups -= (low if m is None else low * m.float())[..., None]
    return code


def _as_stored(fmt: BlockFormat, d: Tensor) -> Tensor:
    return d.to(STORED[fmt.fields[0].kind]).float()


def _inverse(d: Tensor) -> Tensor:
    quotient = 1 / d
    return torch.where(torch.isfinite(quotient), quotient, 0)


def _codes(fmt: BlockFormat, values: Tensor) -> Tensor:
    """Integers [N, groups, G] as unsigned codes [N, K], held to the range of the format's bits."""
    return values.clamp(0, (1 << fmt.bits) - 1).to(torch.uint8).view(len(values), -1)


def _peak(groups: Tensor) -> Tensor:
    """The first value of largest magnitude of each group, with its sign: [N, groups, 1]."""
    size = groups.abs()
    places = torch.arange(groups.shape[-1], device=groups.device)
    first = torch.where(size == size.amax(-1, keepdim=True), places, groups.shape[-1]).amin(-1, keepdim=True)
    return groups.gather(-1, first)


def _symmetric(fmt: BlockFormat, x: Tensor) -> Any:
    """`encoders.symmetric`."""
    g = x.view(len(x), -1, fmt.group)
    d = _peak(g) / -fmt.offset
    q = torch.trunc(g * _inverse(d) + (fmt.offset + 0.5))
    return _planes(_codes(fmt, q), d=_as_stored(fmt, d[..., 0]))


def _zero_point(fmt: BlockFormat, x: Tensor) -> Any:
    """`encoders.zero_point`."""
    g = x.view(len(x), -1, fmt.group)
    low, high = (e.clamp(*ends) for e, ends in zip(torch.aminmax(g, dim=-1, keepdim=True), ((None, 0), (0, None)),
                                                   strict=True))
    d = ((high - low) / ((1 << fmt.bits) - 1)).half().float()
    zero = torch.round(-low * _inverse(d)).clamp(0, (1 << fmt.bits) - 1)
    q = torch.round(g * _inverse(d)) + zero
    return _planes(_codes(fmt, q), d=_as_stored(fmt, d[..., 0]), m=zero[..., 0].to(torch.uint8))


def _affine(fmt: BlockFormat, x: Tensor) -> Any:
    """`encoders.affine`."""
    g = x.view(len(x), -1, fmt.group)
    low, high = torch.aminmax(g, dim=-1, keepdim=True)
    d = (high - low) / ((1 << fmt.bits) - 1)
    q = torch.trunc((g - low) * _inverse(d) + 0.5)
    return _planes(_codes(fmt, q), d=_as_stored(fmt, d[..., 0]), dmin=_as_stored(fmt, -low[..., 0]))


_ENCODERS: dict[Any, Callable[[BlockFormat, Tensor], Any]] = {
    plain.symmetric: _symmetric, plain.zero_point: _zero_point, plain.affine: _affine,
}
