"""Quantized modules as compressed-tensors stores them: the inverse of `layouts.compressed_weights`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from octavo.formats import channel_format
from octavo.formats.rows import GROUP, Scheme
from octavo.formats.spec import F32, U8, AnyArray
from octavo.huggingface.layouts.compressed_weights import PACKED, SCALE, SHAPE
from octavo.huggingface.schemes import packs
from octavo.io.safetensors import TensorHead

CODES = {"int": "I8", "float": "F8_E4M3"}
"""Dtypes of codes that are not packed, by the kind of a scheme."""
PER_WORD = 8
"""Codes of 4 bits in a word."""


def module_heads(name: str, scheme: Scheme, shape: tuple[int, ...]) -> list[TensorHead]:
    """The tensors of a linear layer whose weight [N, K] would be called `name`, "m.weight"."""
    n, k = shape
    module = name.removesuffix(".weight")
    scale = TensorHead(f"{module}.{SCALE}", "F32", (n, k // GROUP if channel_format(scheme.format, k).folds else 1))
    if not packs(scheme):
        return [TensorHead(name, CODES[scheme.kind], shape), scale]
    packed = TensorHead(f"{module}.{PACKED}", "I32", (n, k // PER_WORD))
    return [packed, scale, TensorHead(f"{module}.{SHAPE}", "I64", (2,))]


def module_arrays(scheme: Scheme, q: U8, scales: F32) -> Iterator[AnyArray]:
    """The values of `module_heads`, of codes as planes have them, uint8 [N, K], and scales of rows or of groups."""
    fmt = channel_format(scheme.format, q.shape[1])
    if packs(scheme):
        yield packed_words(q)
    else:
        yield q if fmt.number is not None else q ^ np.uint8(0x80)
    yield np.ascontiguousarray(scales, dtype="<f4")
    if packs(scheme):
        yield np.array(q.shape, dtype="<i8")


def packed_words(q: U8) -> npt.NDArray[np.int32]:
    """Codes 0 to 15, uint8 [N, K], as int32 [N, K / 8]: eight neighbours in a word, the first lowest."""
    return (q[:, 0::2] | (q[:, 1::2] << 4)).view("<i4")
