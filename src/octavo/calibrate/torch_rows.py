"""Rows of a format as tensors of torch: planes, to and from the host, and plain encoders of rows of groups."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.formats import BlockFormat, Planes, QTensor, dequantize
from octavo.formats import encoders as plain
from octavo.formats.codec import require_finite
from octavo.formats.spec import AnyArray

STORED = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
"""Types of scales, by their fields'."""


@dataclass(frozen=True, eq=False)
class TorchPlanes:
    """The planes of rows on a device; see `octavo.formats.Planes`."""

    q: Tensor
    d: Tensor
    sc: Tensor | None = None
    dmin: Tensor | None = None
    m: Tensor | None = None

    @classmethod
    def of(cls, planes: Planes, device: torch.device | str) -> TorchPlanes:
        """Planes of the host on a device."""
        return cls(**{name: tensor_of(x, device) for name, x in vars(planes).items() if x is not None})

    @classmethod
    def joined(cls, parts: Sequence[TorchPlanes]) -> TorchPlanes:
        """Rows one after the other."""
        names = [name for name, x in vars(parts[0]).items() if x is not None]
        return parts[0] if len(parts) == 1 else cls(**{n: torch.cat([getattr(p, n) for p in parts]) for n in names})

    def rows(self, part: slice) -> TorchPlanes:
        """The planes of some rows."""
        return TorchPlanes(**{name: x[part] for name, x in vars(self).items() if x is not None})

    def host(self) -> Planes:
        return Planes(**{name: x.cpu().numpy() for name, x in vars(self).items() if x is not None})

    def where(self, rows: Tensor, other: TorchPlanes) -> TorchPlanes:
        """These planes in the rows [N] that are true, those of `other` elsewhere."""

        def chosen(name: str) -> Tensor:
            return torch.where(rows[:, None], getattr(self, name), getattr(other, name))

        return TorchPlanes(**{name: chosen(name) for name, x in vars(self).items() if x is not None})


def tensor_of(x: AnyArray, device: torch.device | str) -> Tensor:
    """An array of the host on a device; of a file that is mapped too, which is read-only unless copied."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        found = torch.from_numpy(x)
    return found.to(device, copy=not x.flags.writeable)


def values_of_tensor(stored: QTensor, device: torch.device | str) -> Tensor:
    """A stored tensor's values as float32 on a device; floats are copied as they are stored."""
    number = stored.format.number
    kind = STORED.get(number.name) if stored.format.is_float and number is not None else None
    if kind is None:
        return tensor_of(dequantize(stored), device)
    return tensor_of(stored.stored().data, device).view(kind).float()


def finite_values(stored: QTensor, device: torch.device | str, label: str) -> Tensor:
    """The same. Raises NonFiniteError, with a label for the tensor, at the first NaN or Inf."""
    values = values_of_tensor(stored, device)
    if not bool(torch.isfinite(values).all()):
        require_finite(values.cpu().numpy(), label)
    return values


@dataclass(frozen=True)
class GroupEncoder:
    """A function from rows float32 [N, K] to planes: the plain encoder of a format.

    kind  its name in `formats.encoders`
    """

    fmt: BlockFormat
    kind: str

    def __call__(self, x: Tensor) -> TorchPlanes:
        return _ENCODERS[self.kind](self.fmt, x)


def encoder_of(fmt: BlockFormat) -> GroupEncoder | None:
    """The encoder that gives what `quantize_reference` does; None where there is none for tensors."""
    kinds: dict[Any, str] = {getattr(plain, name): name for name in _ENCODERS}
    kind = next((field.kind for field in fmt.fields if field.name == "d"), None)
    if fmt.encode not in kinds or fmt.number is not None or kind not in STORED:
        return None
    return GroupEncoder(fmt, kinds[fmt.encode])


def decoded(planes: TorchPlanes, fmt: BlockFormat) -> Tensor:
    """float32 values [N, K] of planes: d * sc * code(q) - dmin * m, as `octavo.formats.decode` has them."""
    n, k = planes.q.shape
    supers = fmt.super // fmt.group
    if fmt.table:
        code = _table(fmt, planes.q.device)[planes.q.int()]
    else:
        code = planes.q.float().sub_(fmt.offset)
    groups = code.view(n, k // fmt.group, fmt.group)
    if fmt.has_zero:
        assert planes.m is not None
        groups -= planes.m[..., None].float()
    step = planes.d.repeat_interleave(supers, 1)
    groups *= (step if planes.sc is None else step * planes.sc.float())[..., None]
    if planes.dmin is not None:
        low = planes.dmin.repeat_interleave(supers, 1)
        groups -= (low if planes.m is None else low * planes.m.float())[..., None]
    return code


def _table(fmt: BlockFormat, device: torch.device | str) -> Tensor:
    return torch.tensor(fmt.table, dtype=torch.float32, device=device) * fmt.step


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


def _symmetric(fmt: BlockFormat, x: Tensor) -> TorchPlanes:
    """`encoders.symmetric`."""
    g = x.view(len(x), -1, fmt.group)
    d = _peak(g) / -fmt.offset
    q = torch.trunc(g * _inverse(d) + (fmt.offset + 0.5))
    return TorchPlanes(_codes(fmt, q), _as_stored(fmt, d[..., 0]))


def _zero_point(fmt: BlockFormat, x: Tensor) -> TorchPlanes:
    """`encoders.zero_point`."""
    g = x.view(len(x), -1, fmt.group)
    low, high = (e.clamp(*ends) for e, ends in zip(torch.aminmax(g, dim=-1, keepdim=True), ((None, 0), (0, None)),
                                                   strict=True))
    d = ((high - low) / ((1 << fmt.bits) - 1)).half().float()
    zero = torch.round(-low * _inverse(d)).clamp(0, (1 << fmt.bits) - 1)
    q = torch.round(g * _inverse(d)) + zero
    return TorchPlanes(_codes(fmt, q), _as_stored(fmt, d[..., 0]), m=zero[..., 0].to(torch.uint8))


def _affine(fmt: BlockFormat, x: Tensor) -> TorchPlanes:
    """`encoders.affine`."""
    g = x.view(len(x), -1, fmt.group)
    low, high = torch.aminmax(g, dim=-1, keepdim=True)
    d = (high - low) / ((1 << fmt.bits) - 1)
    q = torch.trunc((g - low) * _inverse(d) + 0.5)
    return TorchPlanes(_codes(fmt, q), _as_stored(fmt, d[..., 0]), dmin=_as_stored(fmt, -low[..., 0]))


_ENCODERS = {"symmetric": _symmetric, "zero_point": _zero_point, "affine": _affine}
