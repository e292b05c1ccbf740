"""From planes to the GPU layout and back, in NumPy: exact both ways. `unpack` is the definition of the layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from octavo.backends.gpu.weights.layout import HALF, PlaneLayout, ScaleKind, layout_of, padded
from octavo.errors import QuantFormatError
from octavo.formats import BlockFormat, Planes
from octavo.formats.spec import F32, U8, AnyArray


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows of weights in a PlaneLayout; `k` is the true length of a row.

    codes    by bits of the plane: [rows, ...], as in `layout`
    scale    [rows, Kp / 2G, 2] or, with zero points, 4; with two levels [rows, Kp / S, 1 or 2]
    minimum  [rows, Kp / 2G, 2]: minima of one level
    small    int8 or uint8 [rows, Kp / 2G, 2]: scales of groups of the second level
    rest     uint8 [rows, Kp / 2G]
    """

    layout: PlaneLayout
    k: int
    codes: dict[int, AnyArray] = field(default_factory=dict)
    scale: AnyArray | None = None
    minimum: AnyArray | None = None
    small: AnyArray | None = None
    rest: U8 | None = None

    def arrays(self) -> dict[str, AnyArray]:
        """The parts that are there, by name."""
        parts = {f"codes{bits}": plane for bits, plane in self.codes.items()}
        named = {"scale": self.scale, "minimum": self.minimum, "small": self.small, "rest": self.rest}
        return parts | {name: part for name, part in named.items() if part is not None}


def pack(planes: Planes, fmt: BlockFormat, kind: ScaleKind | None = None) -> Packed:
    """Planes of rows [N, K] in the GPU layout, scales kept as `kind` (default: the smallest that is exact).

    Raises QuantFormatError for a format that has no layout.
    """
    if fmt.number is not None:
        planes = _without_nan(planes, fmt)
    assert planes.d is not None
    n, k = planes.q.shape
    layout = layout_of(fmt, kind or scale_kind(planes))
    repeat = fmt.group // layout.group
    kp = padded(k)
    parts: dict[str, AnyArray | None] = dict.fromkeys(("scale", "minimum", "small", "rest"))
    if layout.two_level:
        assert planes.sc is not None
        d = planes.d if planes.dmin is None else np.stack([planes.d, planes.dmin], axis=-1)
        parts["scale"] = _exactly(d, layout.scale).reshape(n, kp // layout.super, 1 + layout.has_min)
        parts["small"], parts["rest"] = _small_scales(layout, planes.sc, planes.m)
    else:
        parts["scale"] = scale = _pairs(_padded(_exactly(planes.d, layout.scale), repeat, kp // layout.group), layout)
        if planes.m is not None:
            zeros = _pairs(_padded(planes.m.astype(scale.dtype), repeat, kp // layout.group), layout)
            parts["scale"] = np.concatenate([scale, zeros], axis=-1)
        elif planes.dmin is not None:
            parts["minimum"] = _pairs(_padded(_exactly(planes.dmin, layout.scale), repeat, kp // layout.group), layout)
    codes = _pack_codes(_padded(planes.q ^ _flip(layout), 1, kp), layout.bits)
    return Packed(layout, k, codes, parts["scale"], parts["minimum"], parts["small"], parts["rest"])


def _without_nan(planes: Planes, fmt: BlockFormat) -> Planes:
    """The planes with scales that are NaN where a number of their group is, which kernels take for another number."""
    assert fmt.number is not None
    assert planes.d is not None
    lost = np.isnan(fmt.number.decode(planes.q)).reshape(*planes.d.shape, fmt.group).any(axis=-1)
    return replace(planes, d=np.where(lost, np.float32(np.nan), planes.d)) if lost.any() else planes


def _flip(layout: PlaneLayout) -> np.uint8:
    """What codes are combined with so that they are signed, or 0."""
    return np.uint8(1 << (layout.bits - 1) if layout.signed else 0)


def unpack(p: Packed) -> Planes:
    """The planes of packed rows, one scale for each of the layout's groups."""
    layout = p.layout
    assert p.scale is not None
    q = _unpack_codes(p.codes, layout.bits)[:, : p.k] ^ _flip(layout)
    groups = -(-p.k // layout.group)
    if layout.two_level:
        assert p.small is not None
        d = np.ascontiguousarray(p.scale[..., 0]).astype(np.float32)
        sc, m = _split_small(layout, p.small, p.rest)
        dmin = np.ascontiguousarray(p.scale[..., 1]).astype(np.float32) if layout.has_min else None
        return Planes(q, d=d, sc=sc, dmin=dmin, m=m)
    d = _as_float(_unpaired(p.scale[..., :2], layout), layout.scale)[:, :groups]
    if layout.has_zero:
        return Planes(q, d=d, m=_unpaired(p.scale[..., 2:], layout)[:, :groups].astype(np.uint8))
    dmin = None if p.minimum is None else _as_float(_unpaired(p.minimum, layout), layout.scale)[:, :groups]
    return Planes(q, d=d, dmin=dmin)


def scale_kind(planes: Planes) -> ScaleKind:
    """The smallest kind that holds every floating scale exactly; NaN counts as held."""
    scales = [s for s in (planes.d, planes.dmin) if s is not None]
    if (
        planes.sc is None
        and planes.dmin is None
        and planes.m is None
        and all((_exponent_value(_exponents(s)) == s).all() for s in scales)
    ):
        return "exponent"
    with np.errstate(over="ignore"):
        half = all(np.array_equal(s.astype(np.float16).astype(np.float32), s, equal_nan=True) for s in scales)
    return "f16" if half else "f32"


def _exponents(d: F32) -> U8:
    return ((d.view(np.uint32) >> 23) & 0xFF).astype(np.uint8)


def _exponent_value(e: U8) -> F32:
    """2^(e - 127); e = 0 stands for 0, as the bits of a float32 have it."""
    return (e.astype(np.uint32) << 23).view(np.float32)


def _exactly(d: F32, kind: ScaleKind) -> AnyArray:
    return _exponents(d) if kind == "exponent" else d.astype(np.float16 if kind == "f16" else np.float32)


def _as_float(d: AnyArray, kind: ScaleKind) -> F32:
    return _exponent_value(d) if kind == "exponent" else d.astype(np.float32)


def _padded(values: AnyArray, repeat: int, width: int) -> AnyArray:
    """Rows with each value `repeat` times, and zeros up to `width`."""
    values = np.repeat(values, repeat, axis=1) if repeat > 1 else values
    return np.pad(values, ((0, 0), (0, width - values.shape[1]))) if values.shape[1] < width else values


def _pairs(groups: AnyArray, layout: PlaneLayout) -> AnyArray:
    """[N, Kp / G] -> [N, Kp / 2G, 2]: a group of a tile's first half beside its counterpart of the second."""
    per_half = HALF // layout.group
    split = groups.reshape(len(groups), -1, 2, per_half).transpose(0, 1, 3, 2)
    return split.reshape(len(groups), -1, 2)


def _unpaired(pairs: AnyArray, layout: PlaneLayout) -> AnyArray:
    """The inverse of `_pairs`."""
    per_half = HALF // layout.group
    split = pairs.reshape(len(pairs), -1, per_half, 2).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(split).reshape(len(pairs), -1)


def _small_scales(layout: PlaneLayout, sc: AnyArray, m: U8 | None) -> tuple[AnyArray, U8 | None]:
    if m is None:
        return _pairs(sc.view(np.int8), layout), None
    if layout.min_bits == 4:
        return _pairs(sc.view(np.uint8) | (m << 4), layout), None
    if layout.min_bits != 6:
        raise QuantFormatError(f"no GPU layout for small minima of {layout.min_bits} bits (allowed: 4, 6)")
    upper = _pairs(m >> 2, layout)
    return _pairs(sc.view(np.uint8) | ((m & 3) << 6), layout), upper[..., 0] | (upper[..., 1] << 4)


def _split_small(layout: PlaneLayout, small: AnyArray, rest: U8 | None) -> tuple[AnyArray, U8 | None]:
    if not layout.has_min:
        return _unpaired(small, layout), None
    if layout.min_bits == 4:
        return _unpaired(small & 15, layout), _unpaired(small >> 4, layout)
    assert rest is not None
    upper = np.stack([rest & 15, rest >> 4], axis=-1)
    return _unpaired(small & 63, layout), _unpaired((small >> 6) | (upper << 2), layout)


def _pack_codes(q: U8, bits: int) -> dict[int, AnyArray]:
    """Codes uint8 [N, Kp] as planes, int8 [N, bytes]."""
    if bits == 8:
        return {8: q.view(np.int8)}
    pairs = q.reshape(len(q), -1, 2, HALF)  # [N, tiles, low or high, p]
    out: dict[int, AnyArray] = {}
    taken = 0
    for width in (w for w in (4, 2, 1) if bits & w):
        part = (pairs >> np.uint8(taken)) & np.uint8((1 << width) - 1)
        both = (part[:, :, 0] | (part[:, :, 1] << np.uint8(width))).reshape(len(q), -1, 4 // width, 16 * width)
        shifts = (2 * width * np.arange(4 // width, dtype=np.uint8))[:, None]
        out[width] = np.bitwise_or.reduce(both << shifts, axis=2).reshape(len(q), -1).view(np.int8)
        taken += width
    return out


def _unpack_codes(codes: dict[int, AnyArray], bits: int) -> U8:
    """The inverse of `_pack_codes`."""
    if bits == 8:
        return codes[8].view(np.uint8)
    q: U8 = np.zeros((), np.uint8)
    taken = 0
    for width, plane in codes.items():
        n, mask = len(plane), np.uint8((1 << width) - 1)
        tiles = plane.view(np.uint8).reshape(n, -1, 1, 16 * width)
        both = (tiles >> (2 * width * np.arange(4 // width, dtype=np.uint8))[:, None]).reshape(n, -1, 1, HALF)
        low_and_high = np.concatenate([both & mask, (both >> np.uint8(width)) & mask], axis=2)
        q = q | (low_and_high << np.uint8(taken))
        taken += width
    return q.reshape(n, -1)
