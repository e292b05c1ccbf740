"""Numbers of 8 and 4 bits that share a scale: the one definition of codes, scales, zero points and packing.

    symmetric      code = round(x / scale),         scale = max|x| / top
    zero point     code = round(x / scale) + zero,  scale = (high - low) / 255, the range widened to hold 0

Halves are rounded to even. Values that are all 0 have the scale 0 and the codes of 0.

The rows of weights (`formats.channel`), activations with a scale a token (`formats.activation`), the functions of `ops`
and `quantizers`, and checkpoints are made of these. `SCHEMES` says which go together in a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.errors import UsageError
from octavo.formats.spec import F32, U8, AnyArray

I8 = npt.NDArray[np.int8]

GROUP = 128
"""Values of a row that share a scale under the row's, and values whose 4-bit codes lie in 64 bytes."""
INT8_TOP, INT4_TOP = 127, 7
"""The largest symmetric codes."""
FP8_TOP = {"e4m3": 448.0, "e5m2": 57344.0}
"""The largest numbers of 8-bit floats."""


@dataclass(frozen=True)
class Scheme:
    """How a linear layer is quantized: its weight once, its activations in each step with a scale a token.

    name        as `octavo quantize --scheme` takes it
    format      of the weight's rows, see `formats.channel`
    activation  format of the activations, see `formats.activation`
    kind        of both operands' codes
    bits        of a weight's code
    group       values of a row that have a scale under the row's; None: the row has one
    """

    name: str
    format: str
    activation: str
    kind: Literal["int", "float"]
    bits: int
    group: int | None = None

    @property
    def multiple(self) -> int:
        """What the length of a row has to be a multiple of."""
        return GROUP if self.bits == 4 else 1


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("int8-w8a8", "INT8", "int8_token", "int", 8),
        Scheme("w4a8", "INT4", "int8_token", "int", 4),
        Scheme("w4a8-g128", "INT4_G128", "int8_token", "int", 4, GROUP),
        Scheme("fp8", "FP8", "fp8_token", "float", 8),
    )
}
"""Schemes by name."""


def find_scheme(name: str) -> Scheme:
    """The scheme of a name. Raises UsageError for others."""
    if name not in SCHEMES:
        raise UsageError(f"scheme {name!r} (allowed: {', '.join(SCHEMES)})")
    return SCHEMES[name]


def groups_of(k: int, **scales: Any) -> int:
    """Groups of K that scales or zero points [rows, groups] are of, None left out; 1 where each is of rows, or of all.

    Arrays or tensors, by name. Raises UsageError for two numbers of groups, and for groups that are not multiples of 32
    values.
    """
    found = {name: list(x.shape) for name, x in scales.items() if x is not None and x.ndim == 2 and x.shape[1] > 1}
    counts = {shape[1] for shape in found.values()}
    if len(counts) > 1 or any(not k or k % (32 * count) for count in counts):
        shapes = " and ".join(f"{name} is {shape}" for name, shape in found.items())
        raise UsageError(f"{shapes} with K = {k} (allowed: one number of groups, of a multiple of 32 values each)")
    return max(counts, default=1)


def divide(x: AnyArray, scale: AnyArray) -> F32:
    """x / scale, 0 where the scale is 0. Shapes are broadcast; a scale that is NaN gives NaN."""
    out = np.zeros(np.broadcast_shapes(np.shape(x), np.shape(scale)), np.float32)
    with np.errstate(invalid="ignore"):
        return np.divide(x, scale, out=out, where=~(scale <= 0))


def symmetric_scale(groups: AnyArray, top: float) -> F32:
    """float32 scales [...] of values [..., n], of which the largest magnitude becomes `top`."""
    return np.asarray(np.abs(groups).max(axis=-1, initial=0) / np.float32(top))


def in_range(groups: AnyArray, scale: AnyArray, top: float) -> F32:
    """Values [..., n] over their scales [...], cut off at -top and top."""
    cut: F32 = np.clip(divide(groups, scale[..., None]), -np.float32(top), np.float32(top))
    return cut


def static_int8(values: AnyArray, scale: float) -> I8:
    """Codes int8 from -128 to 127 of values of any shape, with a scale that is given."""
    return np.clip(np.rint(divide(values, np.asarray(scale, np.float32))), -128, 127).astype(np.int8)


def symmetric(groups: AnyArray, top: int) -> tuple[I8, F32]:
    """Codes int8 [..., n] from -top to top, and scales float32 [...], of values [..., n] that share a scale."""
    scale = symmetric_scale(groups, top)
    return np.rint(in_range(groups, scale, top)).astype(np.int8), scale


def zero_point(groups: AnyArray) -> tuple[U8, F32, U8]:
    """Codes uint8 [..., n], scales float32 [...] and zero points uint8 [...] of values [..., n] that share a scale.

    x = (code - zero) * scale; 0.0 has a code of its own (Jacob et al., arXiv 1712.05877, section 2.1).
    """
    low = np.minimum(groups.min(axis=-1, initial=0), np.float32(0))
    high = np.maximum(groups.max(axis=-1, initial=0), np.float32(0))
    scale = np.asarray(high / np.float32(255) - low / np.float32(255))
    zero = np.clip(np.rint(divide(-low, scale)), 0, 255)
    codes = np.clip(np.rint(divide(groups, scale[..., None])) + zero[..., None], 0, 255)
    return codes.astype(np.uint8), scale, np.asarray(zero).astype(np.uint8)


def two_levels(scales: F32, largest_code: npt.ArrayLike) -> tuple[F32, npt.NDArray[np.float16]]:
    """Scales of groups [..., K / 128] as scales of rows, float32 [..., 1], and float16 scales relative to them.

    largest_code  [...] the largest magnitude of a row's codes: its largest scale times that becomes 127 steps

    These are the two levels of QQQ (arXiv 2406.09904, section 3.3), see `fold`.
    """
    steps = np.asarray(largest_code, np.float32) / np.float32(INT8_TOP)
    row = (np.abs(scales).max(axis=-1, initial=0) * steps)[..., None]
    return row, divide(scales, row).astype(np.float16)


def fold(groups: F32, scales: AnyArray) -> None:
    """Codes [..., K / 128, 128] times their groups' scales [..., K / 128], rounded, in place.

    The result has 8 bits, so that one integer sum runs over all of a row and the row's scale comes after it. Products
    of 4 and 11 bits are exact in float32.
    """
    groups *= scales[..., None].astype(np.float32)
    np.rint(groups, out=groups)


def pack_int4(codes: AnyArray) -> U8:
    """Codes of one byte [..., K], whose low 4 bits count, as uint8 [..., K / 2].

    Byte j of each 64 holds the codes j and j + 64 of 128 values, the first in its low half.
    """
    pairs = codes.view(np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] // GROUP, 2, GROUP // 2)
    low, high = pairs[..., 0, :], pairs[..., 1, :]
    packed: U8 = (low & np.uint8(15)) | (high << np.uint8(4))
    return packed.reshape(*codes.shape[:-1], codes.shape[-1] // 2)


def unpack_int4(packed: U8) -> I8:
    """The inverse of `pack_int4`: int8 [..., K] from -8 to 7, of uint8 [..., K / 2]."""
    parts = packed.reshape(*packed.shape[:-1], packed.shape[-1] // (GROUP // 2), 1, GROUP // 2)
    codes = np.concatenate([parts << 4, parts & 0xF0], axis=-2).view(np.int8) >> 4
    return codes.reshape(*packed.shape[:-1], 2 * packed.shape[-1])
