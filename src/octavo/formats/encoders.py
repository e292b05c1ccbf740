"""Values to planes, the plain way: round to nearest with the scale that the extremes of a group ask for.

These are the reference. They put any array into any format of the table, and the simple formats bit for bit as the
`gguf` package does; they do not search for better scales and know no importance weights, as a quantizer does.

(A group whose scale is too small for 1 / scale to be finite becomes zero; what `gguf` writes there is undefined.)

A function takes the format's row and float32 values [..., K] in whole blocks, and returns planes.
"""

from __future__ import annotations

import numpy as np

from octavo.errors import QuantFormatError
from octavo.formats.scalars import UE4M3_HALF_MAX, e8m0_half_to_f32, f32_to_ue4m3_half, ue4m3_half_to_f32
from octavo.formats.spec import F32, U8, AnyArray, BlockFormat, Planes

AT_A_TIME = 1 << 16
"""Values, and errors of values against each entry of a table, that are looked at together."""
FARTHEST = 1 << 20
"""Steps up to which float32 tells the nearest entry of a table from all others but the next one."""


def by_groups(x: F32, size: int) -> F32:
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def flat_groups(groups: AnyArray) -> AnyArray:
    return groups.reshape(*groups.shape[:-2], groups.shape[-2] * groups.shape[-1])


def _peak(groups: F32) -> F32:
    """The value of largest magnitude of each group, with its sign: [..., groups, 1]."""
    return np.take_along_axis(groups, np.abs(groups).argmax(axis=-1, keepdims=True), axis=-1)


def inverse(d: F32, numerator: float = 1) -> F32:
    """numerator / d, and 0 where d is 0 or too small to have an inverse."""
    quotient = np.float32(numerator) / d
    return np.where(np.isfinite(quotient), quotient, np.float32(0))


def _round_half_away(x: F32) -> F32:
    magnitude = np.abs(x)
    whole = np.floor(magnitude)
    rounded: F32 = np.sign(x) * (whole + np.floor(2 * (magnitude - whole)))
    return rounded


def as_f16(d: F32) -> F32:
    """d as it will be read back from a half float."""
    return d.astype(np.float16).astype(np.float32)


def _codes(values: F32, fmt: BlockFormat) -> U8:
    """Integers as unsigned codes, held to the range of the format's bits."""
    return np.clip(values, 0, (1 << fmt.bits) - 1).astype(np.uint8)


def _nearest_in_table(groups: F32, d: F32, fmt: BlockFormat) -> U8:
    """The code whose d * table[code] is nearest to each value, the first of equals.

    Of groups with values beyond FARTHEST steps, or entries beyond float32, each entry of the table is looked at.
    """
    values, flat = np.array(fmt.table, dtype=np.float32), groups.reshape(-1, groups.shape[-1])
    scales, nearest = d.reshape(-1, 1), np.empty(flat.shape, np.uint8)
    entries, step = _ascending(values), max(1, AT_A_TIME // flat.shape[1])
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        with np.errstate(all="ignore"):
            steps = flat[part] / scales[part]
            nearest[part] = _nearer_of_two(flat[part], scales[part], steps, *entries)
            sizes, last = np.abs(steps, out=steps), scales[part, 0] * np.abs(values).max()
        if not (sizes.max() < FARTHEST and np.isfinite(last).all()):
            far = ~((sizes.max(axis=-1) < FARTHEST) & np.isfinite(last))
            nearest[part][far] = _nearest_of_all(flat[part][far], scales[part][far], values)
    return nearest.reshape(groups.shape)


def _ascending(values: F32) -> tuple[F32, U8]:
    """The entries of a table in order, each once, and the first of its codes; the ends have themselves beside them."""
    levels, codes = np.unique(values, return_index=True)
    return np.pad(levels, 1, "edge"), np.pad(codes.astype(np.uint8), 1, "edge")


def _nearer_of_two(x: F32, d: F32, steps: F32, levels: F32, codes: U8) -> U8:
    """The code of the entry next to x / d [groups, G], below or above it, that is nearer to x."""
    one = np.ones(x.shape, np.int8)
    for middle in (levels[2:-1] + levels[1:-2]) / 2:
        one += (steps > middle).view(np.int8)
    level = levels[one]
    other = one + np.where(steps > level, np.int8(1), np.int8(-1))
    wrong, other_wrong = np.abs(d * level - x), np.abs(d * levels[other] - x)
    nearer, alike = other_wrong < wrong, other_wrong == wrong
    if alike.any():
        nearer |= alike & (codes[other] < codes[one])
    return codes[np.where(nearer, other, one)]


def _nearest_of_all(x: F32, d: F32, values: F32) -> U8:
    """The code of the entry that is nearest to x [groups, G], by all of them."""
    nearest, step = np.empty(x.shape, np.uint8), max(1, AT_A_TIME // (x.shape[1] * len(values)))
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        errors = d[part, :, None] * values - x[part, :, None]
        nearest[part] = np.abs(errors, out=errors).argmin(axis=-1)
    return nearest


def plain(fmt: BlockFormat, x: F32) -> Planes:
    """Each value as the nearest number."""
    assert fmt.number is not None
    assert fmt.number.encode is not None
    q = fmt.number.encode(x)
    lost = ~np.isfinite(fmt.number.decode(q))
    if lost.any():
        raise QuantFormatError(f"the value {x[lost][0]:g} is beyond the range of {fmt.name}")
    return Planes(q)


def symmetric(fmt: BlockFormat, x: F32) -> Planes:
    """Q4_0, Q5_0: the value of largest magnitude gets code 0, the most negative step."""
    g = by_groups(x, fmt.group)
    d = _peak(g) / np.float32(-fmt.offset)
    q = np.trunc(g * inverse(d) + np.float32(fmt.offset + 0.5))
    return Planes(flat_groups(_codes(q, fmt)), d=d[..., 0])


def affine(fmt: BlockFormat, x: F32) -> Planes:
    """Q4_1, Q5_1: smallest and largest value of a group get the first and the last code."""
    g = by_groups(x, fmt.group)
    low, high = g.min(axis=-1, keepdims=True), g.max(axis=-1, keepdims=True)
    d = (high - low) / np.float32((1 << fmt.bits) - 1)
    q = np.trunc((g - low) * inverse(d) + np.float32(0.5))
    return Planes(flat_groups(_codes(q, fmt)), d=d[..., 0], dmin=-low[..., 0])


def zero_point(fmt: BlockFormat, x: F32) -> Planes:
    """Rows with zero points: the range of a group, widened to 0, is the codes' range, and 0 is one of them."""
    g = by_groups(x, fmt.group)
    low, high = np.minimum(g.min(axis=-1, keepdims=True), 0), np.maximum(g.max(axis=-1, keepdims=True), 0)
    d = as_f16((high - low) / np.float32((1 << fmt.bits) - 1))
    zero = _codes(np.rint(-low * inverse(d)), fmt)
    q = np.rint(g * inverse(d)) + zero
    return Planes(flat_groups(_codes(q, fmt)), d=d[..., 0], m=zero[..., 0])


def ternary(fmt: BlockFormat, x: F32) -> Planes:
    """TQ1_0, TQ2_0: the largest magnitude is a step, halves round away from zero."""
    g = by_groups(x, fmt.group)
    d = np.abs(g).max(axis=-1, keepdims=True)
    return Planes(flat_groups(_codes(_round_half_away(g * inverse(d)) + fmt.offset, fmt)), d=d[..., 0])


def signed_bytes(fmt: BlockFormat, x: F32) -> Planes:
    """Q8_0, Q8_1: symmetric, the largest magnitude is 127 steps, halves round away from zero."""
    g = by_groups(x, fmt.group)
    d = np.abs(g).max(axis=-1, keepdims=True) / np.float32(127)
    q = _round_half_away(g * inverse(d)) + fmt.offset
    return Planes(flat_groups(_codes(q, fmt)), d=d[..., 0])


def signed_bytes_k(fmt: BlockFormat, x: F32) -> Planes:
    """Q8_K: the value of largest magnitude is -127 steps, halves round to even."""
    g = by_groups(x, fmt.group)
    factor = inverse(_peak(g), -127)
    q = np.minimum(np.rint(g * factor), 127) + fmt.offset
    return Planes(flat_groups(_codes(q, fmt)), d=inverse(factor)[..., 0])


def table(fmt: BlockFormat, x: F32) -> Planes:
    """IQ4_NL: the value of largest magnitude gets the first entry of the table."""
    assert fmt.table is not None
    g = by_groups(x, fmt.group)
    d = as_f16(_peak(g) / np.float32(fmt.table[0]))
    return Planes(flat_groups(_nearest_in_table(g, d, fmt)), d=d[..., 0])


def mxfp4(fmt: BlockFormat, x: F32) -> Planes:
    """The power of two that puts the largest magnitude between 4 and 8, where e2m1 ends at 6 (MX v1.0, 6.3)."""
    g = by_groups(x, fmt.group)
    peak = np.abs(g).max(axis=-1, keepdims=True)
    _, exponent = np.frexp(peak)  # 2^(exponent - 1) <= peak < 2^exponent
    byte = np.where(peak > 0, np.clip(exponent - 3 + 127, 0, 254), 0)
    d = e8m0_half_to_f32(byte.astype(np.uint8))
    return Planes(flat_groups(_nearest_in_table(g, d, fmt)), d=d[..., 0])


def nvfp4(fmt: BlockFormat, x: F32) -> Planes:
    """The ue4m3 scale nearest to the one that makes the largest magnitude e2m1's largest, 6."""
    g = by_groups(x, fmt.group)
    d = np.abs(g).max(axis=-1, keepdims=True) / np.float32(12)
    if d.max(initial=0) > UE4M3_HALF_MAX:
        raise QuantFormatError(f"the value {np.abs(x).max():g} is beyond {fmt.name} (allowed: up to 2688)")
    d = ue4m3_half_to_f32(f32_to_ue4m3_half(d))
    return Planes(flat_groups(_nearest_in_table(g, d, fmt)), d=d[..., 0])


def _two_levels(wanted: F32, fmt: BlockFormat, top: int) -> tuple[F32, AnyArray]:
    """Floating scales [..., K / S] and integer ones [..., K / G] for the group scales wanted [..., K / G].

    The group scale of largest magnitude gets the integer `top`.
    """
    per_super = by_groups(wanted, fmt.super // fmt.group)
    d = as_f16(_peak(per_super) / np.float32(top))
    low, high = min(top, 0), max(top, -top - 1)
    integers = np.clip(np.rint(per_super * inverse(d)), low, high)
    return d[..., 0], flat_groups(integers.astype(np.int8 if low else np.uint8))


def _per_group(d: F32, sc: AnyArray, fmt: BlockFormat) -> F32:
    return (np.repeat(d, fmt.super // fmt.group, axis=-1) * sc.astype(np.float32))[..., None]


def two_level(fmt: BlockFormat, x: F32) -> Planes:
    """Q3_K, Q6_K, IQ4_XS: as `symmetric` or `table`, with signed integer group scales."""
    g = by_groups(x, fmt.group)
    first = fmt.table[0] if fmt.table else -fmt.offset
    d, sc = _two_levels((_peak(g) / np.float32(first))[..., 0], fmt, top=-(1 << (fmt.scale_bits - 1)))
    scale = _per_group(d, sc, fmt)
    if fmt.table:
        return Planes(flat_groups(_nearest_in_table(g, scale, fmt)), d=d, sc=sc)
    q = np.rint(g * inverse(scale)) + fmt.offset
    return Planes(flat_groups(_codes(q, fmt)), d=d, sc=sc)


def two_level_min(fmt: BlockFormat, x: F32) -> Planes:
    """Q2_K, Q4_K, Q5_K: as `affine` over each group's range widened to zero, with integer scales and minima."""
    g = by_groups(x, fmt.group)
    low, high = np.minimum(g.min(axis=-1), 0), g.max(axis=-1)
    top = (1 << fmt.scale_bits) - 1
    d, sc = _two_levels(np.maximum(high - low, 0) / np.float32((1 << fmt.bits) - 1), fmt, top)
    dmin, m = _two_levels(-low, fmt, top)
    q = np.rint((g + _per_group(dmin, m, fmt)) * inverse(_per_group(d, sc, fmt)))
    return Planes(flat_groups(_codes(q, fmt)), d=d, sc=sc, dmin=dmin, m=m)
